from slime.compose.compose import examine
from slime.topology.topology import read_topology
from slime_testing.quantizations import check_quantization

DEMO = ["+model=glm4-tiny", "+cluster=local"]


def test_contract() -> None:
    check_quantization("int8")


def test_a_plan_has_it() -> None:
    """In the fields of the engines, in the bytes of a version, and in the alarm."""
    examined = examine([*DEMO, "rollout.int8=row"])
    assert examined.problems == []
    [engine] = read_topology(examined.cfg).engines
    assert '"quant_method": "w8a8_int8"' in engine.fields["json_model_override_args"]
    assert examined.cfg.observe.logprob_alarm == 0.3
    offloads = examine([*DEMO, "rollout.int8=row", "rollout.sglang.cpu_offload_gb=1"])
    assert "rollout.sglang.cpu_offload_gb: is set" in " ".join(map(str, offloads.problems))
