from slime.hookspecs import hookimpl


@hookimpl
def slime_models():
    from slime_families import exaone4, olmo2, phi3, stablelm

    return {"phi3": phi3.Phi3, "exaone4": exaone4.Exaone4, "olmo2": olmo2.Olmo2, "stablelm": stablelm.StableLm}
