"""Random state: seed and offset, 16 bytes, default generators."""

from __future__ import annotations

import threading

import pytest
import torch

from torch_tpu import _C


def state_bytes(seed: int, offset: int) -> torch.Tensor:
    return torch.tensor(
        list(seed.to_bytes(8, "little") + offset.to_bytes(8, "little")), dtype=torch.uint8
    )


def test_new_generator():
    generator = torch.Generator("tpu")
    assert generator.device == torch.device("tpu", 0)
    assert generator.initial_seed() == 67280421310721
    assert generator.get_offset() == 0


def test_state_is_seed_and_offset():
    generator = torch.Generator("tpu").manual_seed(5)
    generator.set_offset(77)
    assert generator.get_state().equal(state_bytes(5, 77))
    big = 2**64 - 1
    generator.set_state(state_bytes(big, 12))
    assert generator.initial_seed() == big
    assert generator.get_offset() == 12
    generator.manual_seed(6)
    assert generator.get_state().equal(state_bytes(6, 0))  # a seed starts at the beginning
    generator.set_state(state_bytes(9, 0)[:8])  # without an offset
    assert generator.get_state().equal(state_bytes(9, 0))


def test_state_is_copied():
    generator = torch.Generator("tpu").manual_seed(1)
    state = generator.get_state()
    generator.manual_seed(2)
    assert state.equal(state_bytes(1, 0))
    twin = generator.clone_state()
    twin.manual_seed(3)
    assert generator.initial_seed() == 2


def test_graphsafe_state_is_shared():
    generator = torch.Generator("tpu").manual_seed(1)
    shared = generator.graphsafe_get_state()
    shared.manual_seed(8)
    shared.set_offset(4)
    assert generator.get_state().equal(state_bytes(8, 4))
    other = torch.Generator("tpu").manual_seed(20)
    generator.graphsafe_set_state(other)
    assert generator.initial_seed() == 20
    assert shared.initial_seed() == 8
    with pytest.raises(RuntimeError, match="Expected a 'tpu' device type"):
        generator.graphsafe_set_state(torch.Generator())


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (torch.zeros(5, dtype=torch.uint8), RuntimeError, "expected 16 bytes, got 5"),
        (torch.zeros(16), TypeError, "must be a torch.ByteTensor"),
        (torch.zeros(32, dtype=torch.uint8)[::2], RuntimeError, "must be contiguous"),
    ],
)
def test_wrong_state(state, error, message):
    generator = torch.Generator("tpu").manual_seed(4)
    with pytest.raises(error, match=message):
        generator.set_state(state)
    assert generator.initial_seed() == 4


def test_seed_is_fresh():
    generator = torch.Generator("tpu")
    seeds = {generator.seed() for _ in range(4)}
    assert len(seeds) == 4
    assert generator.initial_seed() in seeds


def test_default_generator():
    generator = _C._default_generator(0)
    saved = generator.get_state()
    try:
        assert _C._default_generator() is generator
        torch.manual_seed(123)
        assert generator.initial_seed() == 123
        assert generator.get_offset() == 0
        _C._manual_seed_all(7)
        assert generator.initial_seed() == 7
    finally:
        generator.set_state(saved)


def test_draws_advance_and_repeat():
    generator = torch.Generator("tpu").manual_seed(11)
    first = torch.rand(100, device="tpu", generator=generator).cpu()
    after = generator.get_offset()
    assert after >= 100 / 4
    second = torch.rand(100, device="tpu", generator=generator).cpu()
    assert generator.get_offset() > after
    assert not first.equal(second)
    generator.set_offset(after)
    assert torch.rand(100, device="tpu", generator=generator).cpu().equal(second)
    generator.manual_seed(11)
    assert torch.rand(100, device="tpu", generator=generator).cpu().equal(first)
    assert (first >= 0).all()
    assert (first < 1).all()


def test_generator_of_another_device_is_refused():
    with pytest.raises(RuntimeError, match="Expected a 'tpu' device type for generator but found"):
        torch.rand(3, device="tpu", generator=torch.Generator())


def test_fork_rng():
    with torch.random.fork_rng(devices=[0], device_type="tpu"):
        torch.manual_seed(1)
        inside = torch.rand(4, device="tpu").cpu()
    torch.manual_seed(1)
    assert torch.rand(4, device="tpu").cpu().equal(inside)


def test_default_seeds_differ_between_processes(run_python):
    code = "from torch_tpu import _C; print(_C._default_generator().initial_seed())"
    assert run_python(code) != run_python(code)


def test_each_device_has_its_own(run_python):
    run_python(
        """
        import torch
        from torch_tpu import _C
        torch.manual_seed(5)
        generators = [_C._default_generator(i) for i in range(4)]
        assert [g.device.index for g in generators] == [0, 1, 2, 3]
        assert all(g.initial_seed() == 5 for g in generators)
        generators[1].set_offset(9)
        assert generators[2].get_offset() == 0
        assert not _C._is_initialized()
        try:
            torch.rand(3, device="tpu:1", generator=torch.Generator("tpu:2"))
        except RuntimeError as error:
            assert "of device tpu:1 but found one of tpu:2" in str(error), error
        else:
            raise AssertionError("no error")
        """,
        TORCH_TPU_CPU_DEVICES="4",
    )


def test_threads_draw_disjoint_numbers():
    generator = torch.Generator("tpu").manual_seed(1)
    drawn = []

    def work() -> None:
        for _ in range(5):
            drawn.append(tuple(torch.rand(16, device="tpu", generator=generator).cpu().tolist()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(drawn)) == 20
