"""Streams (labels) and events (real completion and timing) through torch's own classes."""

from __future__ import annotations

import threading
import time

import pytest
import torch

accelerator = torch.accelerator


def work(size: int = 512, times: int = 4) -> torch.Tensor:
    x = torch.ones(size, size).to("tpu") / size
    y = x
    for _ in range(times):
        y = y @ x
    return y


def timed() -> torch.Event:
    return torch.Event("tpu", enable_timing=True)


def test_default_stream():
    stream = accelerator.current_stream()
    assert stream.device == torch.device("tpu", 0)
    assert stream.stream_id == 0
    assert stream == accelerator.current_stream(0)


def test_new_streams_are_distinct():
    streams = [torch.Stream("tpu") for _ in range(3)]
    assert len({stream.stream_id for stream in streams}) == 3
    assert all(stream.stream_id != 0 for stream in streams)
    assert torch.Stream("tpu", priority=-1).device.type == "tpu"


def test_current_stream():
    outer, inner = torch.Stream("tpu"), torch.Stream("tpu")
    with outer:
        assert accelerator.current_stream() == outer
        with inner:
            assert accelerator.current_stream() == inner
        assert accelerator.current_stream() == outer
    assert accelerator.current_stream().stream_id == 0
    accelerator.set_stream(outer)
    assert accelerator.current_stream() == outer
    accelerator.set_stream(torch.Stream(stream_id=0, device_index=0, device_type=20))
    assert accelerator.current_stream().stream_id == 0


def test_work_on_streams_follows_the_data():
    first, second = torch.Stream("tpu"), torch.Stream("tpu")
    with first:
        x = torch.arange(8.0).to("tpu") + 1
    with second:
        second.wait_stream(first)
        y = x * 2
        y.record_stream(second)
    assert y.cpu().equal((torch.arange(8.0) + 1) * 2)
    second.synchronize()
    assert second.query()


def test_stream_of_no_device():
    stream = torch.Stream(stream_id=1, device_index=99, device_type=20)
    with pytest.raises(RuntimeError, match="Invalid device id: tpu:99"):
        stream.synchronize()
    with pytest.raises(RuntimeError, match="Invalid device id: tpu:99"):
        stream.query()


def test_event_that_was_never_recorded_is_done():
    event = torch.Event("tpu")
    assert event.query()
    event.synchronize()
    event.wait()


def test_event_is_done_after_synchronize():
    result = work()
    event = torch.Event("tpu")
    event.record()
    event.synchronize()
    assert event.query()
    assert abs(result.cpu()[0, 0].item() - 1 / 512) < 1e-5


def test_event_from_stream():
    stream = torch.Stream("tpu")
    event = stream.record_event()
    assert event.device == torch.device("tpu", 0)
    stream.wait_event(event)
    event.synchronize()
    assert event.query()


def test_elapsed_time_is_wall_time():
    start, end = timed(), timed()
    accelerator.synchronize()
    start.record()
    time.sleep(0.05)
    end.record()
    end.synchronize()
    assert 50 <= start.elapsed_time(end) < 500
    assert start.elapsed_time(end) == start.elapsed_time(end)


def test_elapsed_time_covers_the_work():
    work(1024, 2).cpu()  # compiled
    accelerator.synchronize()
    start, end = timed(), timed()
    began = time.perf_counter()
    start.record()
    result = work(1024, 10)
    end.record()
    end.synchronize()
    wall = (time.perf_counter() - began) * 1e3
    elapsed = start.elapsed_time(end)
    assert accelerator.current_stream().query()
    assert 0.5 * wall <= elapsed <= wall + 1
    assert result.cpu().isfinite().all()


def test_event_can_be_recorded_again():
    start, end = timed(), timed()
    start.record()
    end.record()
    end.synchronize()
    first = start.elapsed_time(end)
    time.sleep(0.02)
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= first + 20


def test_elapsed_time_needs_timing_and_records():
    start, end = timed(), timed()
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(end)
    start.record()
    plain = torch.Event("tpu")
    plain.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        start.elapsed_time(plain)


def test_other_threads_run_while_one_waits():
    accelerator.synchronize()
    stop = threading.Event()
    ticks = [0]

    def tick() -> None:
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        result = work(1024, 30)
        event = torch.Event("tpu")
        event.record()
        event.synchronize()
        accelerator.synchronize()
    finally:
        stop.set()
        thread.join()
    assert ticks[0] > 1
    assert result.cpu().isfinite().all()


def test_many_threads_wait_for_one_event():
    result = work()
    event = torch.Event("tpu")
    event.record()
    done = []
    threads = [
        threading.Thread(target=lambda: (event.synchronize(), done.append(event.query())))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [True] * 8
    assert result.cpu().isfinite().all()


def test_event_of_another_device(run_python):
    run_python(
        """
        import torch
        event = torch.Event("tpu")
        event.record(torch.Stream("tpu:1"))
        assert event.device == torch.device("tpu", 1)
        try:
            event.record(torch.Stream("tpu:0"))
        except RuntimeError as error:
            assert "does not match recording stream's device index 0" in str(error), error
        else:
            raise AssertionError("no error")
        stream = torch.Stream("tpu:1")
        with stream:
            assert torch.accelerator.current_stream(1) == stream
            assert torch.accelerator.current_stream(0).stream_id == 0
        """,
        TORCH_TPU_CPU_DEVICES="2",
    )


def test_dropped_results_are_waited_for():
    x = torch.ones(1024, 1024).to("tpu") / 1024
    y = x @ x
    accelerator.synchronize()
    start, end = timed(), timed()
    start.record()
    for _ in range(4):
        y = x @ x  # the earlier result is dropped, most likely before it is computed
    del y
    end.record()
    end.synchronize()
    began = time.perf_counter()
    (x @ x).cpu()
    one = (time.perf_counter() - began) * 1e3
    assert start.elapsed_time(end) > one


def test_threads_synchronize_together():
    x = torch.ones(1024, 1024).to("tpu") / 1024
    result = work(1024, 10)
    done = []

    def wait() -> None:
        accelerator.synchronize()
        done.append(accelerator.current_stream().query())

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [True] * 3  # each waited, also where another had begun to
    assert (x @ result).cpu().isfinite().all()


def test_events_are_done_when_the_device_is():
    x = torch.ones(256, 256).to("tpu") / 256
    for _ in range(100):
        start, end = timed(), timed()
        start.record()
        y = x @ x
        end.record()
        accelerator.synchronize()
        assert start.elapsed_time(end) >= 0
    assert y.cpu().isfinite().all()


def test_events_are_done_in_order():
    stop = time.monotonic() + 2
    errors = []

    def record() -> None:
        x = torch.full((128, 128), 1 / 128).to("tpu")
        try:
            while time.monotonic() < stop:
                start, end = timed(), timed()
                start.record()
                x = x @ x * 128
                end.record()
                end.synchronize()
                assert start.query()
                assert start.elapsed_time(end) >= 0
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
