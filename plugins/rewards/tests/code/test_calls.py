"""The filter of system calls of both machines, run by an interpreter of classic BPF as the kernel has one."""

from __future__ import annotations

import ctypes
import ctypes.util
import struct

import pytest

from slime_rewards.code.calls import ALLOW, CALLS, KILL, MACHINES, NO_SUCH, OWN_PID, REFUSE, RULES, filter_of

NUMBERS = {machine: {name: both[column] for name, both in CALLS.items()} for machine, (column, *_) in MACHINES.items()}
# <linux/audit.h> has the machines by which libseccomp names them, too
X86, ARM = (MACHINES[name][1] for name in ("x86_64", "aarch64"))


def answer(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """What the kernel does with a call."""
    program = filter_of(machine)
    steps = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    whole = [each & (2**64 - 1) for each in [*arguments, *[0] * (6 - len(arguments))]]
    data = struct.pack("=IIQ6Q", number, MACHINES[machine][1] if audit is None else audit, 0, *whole)
    value = at = 0
    while True:
        code, yes, no, operand = steps[at]
        at += 1
        match code:
            case 0x20:  # BPF_LD | BPF_W | BPF_ABS
                (value,) = struct.unpack_from("=I", data, operand)
            case 0x54:  # BPF_ALU | BPF_AND | BPF_K
                value &= operand
            case 0x15:  # BPF_JMP | BPF_JEQ | BPF_K
                at += yes if value == operand else no
            case 0x35:  # BPF_JMP | BPF_JGE | BPF_K
                at += yes if value >= operand else no
            case 0x06:  # BPF_RET | BPF_K
                return int(operand)
            case _:
                raise AssertionError(f"no such step: {code:#x}")


def arguments_of(name: str) -> list[int]:
    """Some that the first alternative of a call's rule allows."""
    given = [0] * 6
    for test in RULES.get(name, ((),))[0]:
        if not test.high:
            given[test.argument] |= test.values[0]
    return given


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_listed_is_allowed_and_nothing_else(machine):
    numbers = {number: name for name, number in NUMBERS[machine].items() if number is not None}
    for number in range(600):
        found = answer(machine, number, *arguments_of(numbers.get(number, "")))
        expected = ALLOW if number in numbers else NO_SUCH if number >= 424 else REFUSE
        assert found == expected, numbers.get(number, number)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("clone", (0x003D0F00,), ALLOW),
        ("clone", (0x017D0F00,), REFUSE),  # and CLONE_CHILD_SETTID
        ("clone", (0x00000011,), REFUSE),  # fork
        ("clone", (0x103D0F00,), REFUSE),  # and CLONE_NEWUSER
        ("fcntl", (3, 4, 0o4000), ALLOW),  # F_SETFL, O_NONBLOCK
        ("fcntl", (3, 4, 0o20000), REFUSE),  # O_ASYNC
        ("fcntl", (3, 8, 1), REFUSE),  # F_SETOWN
        ("fcntl", (3, 10, 9), REFUSE),  # F_SETSIG
        ("fcntl", (3, 2, 1), ALLOW),  # F_SETFD
        ("ioctl", (3, 0x5421), ALLOW),  # FIONBIO
        ("ioctl", (3, 0x8901), REFUSE),  # FIOSETOWN
        ("ioctl", (3, 0x5412), REFUSE),  # TIOCSTI
        ("socketpair", (1, 1 | 0o2000000), ALLOW),
        ("socketpair", (1, 2), REFUSE),
        ("socketpair", (2, 1), REFUSE),
        ("sendto", (3, 0, 0, 0, 0), ALLOW),
        ("sendto", (3, 0, 0, 0, 0x7F00_0000_1000), REFUSE),
        ("sendto", (3, 0, 0, 0, 0x1_0000_0000), REFUSE),
        ("kill", (OWN_PID, 9), ALLOW),
        ("kill", (0, 9), REFUSE),
        ("kill", (1, 9), REFUSE),
        ("tgkill", (1, 1, 9), REFUSE),
        ("prctl", (15,), ALLOW),  # PR_SET_NAME
        ("prctl", (1, 9), REFUSE),  # PR_SET_PDEATHSIG
        ("prlimit64", (0,), ALLOW),
        ("prlimit64", (1,), REFUSE),
        ("mmap", (0, 4096, 3, 0x22), ALLOW),
        ("mmap", (0, 4096, 3, 0x40022), REFUSE),  # huge pages
    ],
)
def test_arguments_count(machine, name, arguments, expected):
    assert answer(machine, NUMBERS[machine][name], *arguments) == expected


def test_other_ways_into_the_kernel_end_the_program():
    """i386's calls have other numbers, x32's a bit of their own."""
    assert answer("x86_64", NUMBERS["x86_64"]["read"]) == ALLOW
    assert answer("x86_64", NUMBERS["x86_64"]["read"], audit=0x40000003) == KILL
    assert answer("x86_64", NUMBERS["x86_64"]["read"] | 0x40000000) == KILL
    assert answer("aarch64", NUMBERS["aarch64"]["read"], audit=X86) == KILL
    assert answer("aarch64", NUMBERS["aarch64"]["read"], audit=ARM) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_are_those_of_libseccomp(machine):
    name = ctypes.util.find_library("seccomp")
    if name is None:
        pytest.skip("libseccomp, which knows the numbers of all machines, is not installed")
    library = ctypes.CDLL(name)
    audit = MACHINES[machine][1]
    found = {call: library.seccomp_syscall_resolve_name_arch(audit, call.encode()) for call in [*CALLS, "seccomp"]}
    assert found.pop("seccomp") == MACHINES[machine][2]
    # Numbers below 0 are its own, for calls that a machine does not have.
    assert {call: number if number >= 0 else None for call, number in found.items()} == NUMBERS[machine]
