import pytest
import torch

from megatron_core_portable import cpu_stands_in_for_cuda

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the context does nothing where CUDA is")


def test_cuda_literals_mean_cpu_inside() -> None:
    with cpu_stands_in_for_cuda():
        assert torch.zeros(2, device="cuda").device.type == "cpu"
        assert torch.empty(2, device=torch.device("cuda", 0), pin_memory=True).device.type == "cpu"
        assert torch.ones(2).cuda().device.type == "cpu"
        assert torch.ones(2).to("cuda").device.type == "cpu"
        assert torch.ones(2).type() == "torch.cuda.FloatTensor"
        assert torch.ones(2).type(torch.float64).dtype == torch.float64
        assert torch.cuda.current_device() == torch.device("cpu")


def test_streams_and_events_are_always_done() -> None:
    with cpu_stands_in_for_cuda():
        stream, event = torch.cuda.Stream(), torch.cuda.Event()
        event.record(stream)
        stream.wait_event(event)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda.synchronize()
        assert event.query()


def test_everything_is_as_before_outside() -> None:
    before = torch.cuda.current_device
    with pytest.raises(KeyError), cpu_stands_in_for_cuda():
        raise KeyError
    assert torch.cuda.current_device is before
    assert torch.ones(2).type() == "torch.FloatTensor"
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2, device="cuda")
