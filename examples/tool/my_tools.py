import ast
import operator

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def calculator(expression: str) -> str:
    """Compute an expression of numbers, such as 12*(3+4).

    Args:
        expression: What to compute.
    """

    def value(node):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return node.value
        return OPERATORS[type(node.op)](value(node.left), value(node.right))

    return f"{value(ast.parse(expression, mode='eval').body):.10g}"
