from slime.types import Turn, Verdict
from slime_testing.programs import ProgramCase, check_program

SHORT, LONG = Turn("85", "stop"), Turn("70 and 15 make", "length")


def test_contract() -> None:
    cut_off = ProgramCase([LONG, LONG], LONG.text)
    check_program("retry", [ProgramCase([SHORT], "85"), ProgramCase([LONG, SHORT], "85"), cut_off])


def test_how_often_is_an_option() -> None:
    check_program("retry", [ProgramCase([LONG, LONG, SHORT], "85")], {"times": 2})


def test_what_gives_up_judges_itself() -> None:
    cases = [ProgramCase([LONG, LONG], LONG.text, Verdict.of(0.0)), ProgramCase([SHORT], "85")]
    check_program("retry", cases, {"give_up": True})
