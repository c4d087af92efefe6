import numpy as np
import pytest
import torch

from slime_sglang.engine.coverage import Coverage, byte_runs

VIEWS = {
    "whole": lambda matrix: matrix,
    "rows": lambda matrix: matrix[3:5],
    "columns": lambda matrix: matrix[:, 2:9],
    "block": lambda matrix: matrix[1:4, 5:6],
    "transposed": lambda matrix: matrix.t(),
    "every second row": lambda matrix: matrix[::2],
    "every third column, transposed": lambda matrix: matrix[:, ::3].t(),
    "one element": lambda matrix: matrix[7, 11],
    "expanded": lambda matrix: matrix[:1].expand(5, -1),
    "reshaped": lambda matrix: matrix.view(4, 2, 3, 4)[:, 1, :, 2:],
}


def bytes_of(view, matrix):
    """The bytes behind a view by torch's own indexing."""
    mark = torch.zeros(matrix.shape, dtype=torch.bool)
    mark.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(True)
    return mark.flatten().numpy().repeat(matrix.element_size())


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_runs_are_the_bytes_of_the_view(view, dtype):
    matrix = torch.zeros(8, 12, dtype=dtype)
    found = np.zeros(matrix.nbytes, dtype=bool)
    for start, end in byte_runs(view(matrix), matrix.data_ptr()):
        found[start:end] = True
    assert (found == bytes_of(view(matrix), matrix)).all()


def test_union_of_random_views():
    generator = np.random.default_rng(5)
    matrix = torch.zeros(16, 24)
    for _ in range(50):
        coverage, expected = Coverage(matrix.nbytes), np.zeros(matrix.nbytes, dtype=bool)
        for _ in range(generator.integers(1, 8)):
            (top, bottom), (left, right) = np.sort(generator.integers(0, 16, 2)), np.sort(generator.integers(0, 24, 2))
            view = matrix[top : bottom + 1, left : right + 1]
            coverage.add_view(view, matrix.data_ptr())
            expected |= bytes_of(view, matrix)
        missing = np.zeros(matrix.nbytes, dtype=bool)
        for start, end in coverage.missing():
            missing[start:end] = True
        assert (missing == ~expected).all()


def test_nothing_and_everything():
    coverage = Coverage(40)
    assert coverage.missing().tolist() == [[0, 40]]
    coverage.add(np.array([[0, 25], [25, 40]]))
    assert coverage.missing().tolist() == []


def test_fused_parts_make_one_run():
    fused = torch.zeros(6, 8)
    coverage = Coverage(fused.nbytes)
    for part in fused.chunk(3):
        coverage.add_view(part, fused.data_ptr())
    assert coverage.covered().tolist() == [[0, fused.nbytes]]
