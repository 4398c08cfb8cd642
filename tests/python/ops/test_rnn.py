"""Recurrent cells and layers, and weight normalisation."""

import pytest
import torch

import torch_tpu


def both(module, *inputs):
    """Outputs and gradients of a module and its inputs, on CPU and on the device."""
    results = []
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        m = module().to(device)
        args = [x.detach().to(device).requires_grad_() for x in inputs]
        outputs = torch.utils._pytree.tree_flatten(m(*args))[0]
        loss = sum((o * (i + 1)).sin().sum() for i, o in enumerate(outputs))
        grads = torch.autograd.grad(loss, [*args, *m.parameters()])
        results.append([x.detach().cpu() for x in (*outputs, *grads)])
    return results


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 2, "bidirectional": True},
        {"bias": False, "batch_first": True},
    ],
    ids=["plain", "deep", "no-bias"],
)
def test_layers(kind, options):
    before = set(torch_tpu.coverage())
    cpu, tpu = both(lambda: kind(4, 5, **options), torch.randn(3, 2, 4))
    for want, got in zip(cpu, tpu, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert set(torch_tpu.coverage()) == before


def test_lstm_projection():
    cpu, tpu = both(lambda: torch.nn.LSTM(4, 5, proj_size=3), torch.randn(3, 2, 4))
    for want, got in zip(cpu, tpu, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells(kind, bias):
    cpu, tpu = both(lambda: kind(4, 5, bias=bias), torch.randn(2, 4))
    for want, got in zip(cpu, tpu, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_packed_sequence():
    def run(device):
        torch.manual_seed(0)
        lstm = torch.nn.LSTM(4, 5).to(device)
        x = torch.randn(4, 3, 4).to(device)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, [4, 2, 1])
        out, _ = torch.nn.utils.rnn.pad_packed_sequence(lstm(packed)[0])
        return out.cpu()

    torch.testing.assert_close(run("tpu"), run("cpu"), rtol=1e-4, atol=1e-5)


def test_lstm_second_derivative():
    def second(device):
        torch.manual_seed(0)
        cell = torch.nn.LSTMCell(3, 4).to(device)
        x = torch.randn(2, 3).to(device).requires_grad_()
        (gx,) = torch.autograd.grad(cell(x)[0].sum(), x, create_graph=True)
        return torch.autograd.grad((gx**2).sum(), x)[0].cpu()

    torch.testing.assert_close(second("tpu"), second("cpu"), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(dim):
    def run(device):
        torch.manual_seed(0)
        v = torch.randn(3, 4, 5).to(device).requires_grad_()
        sizes = [1, 1, 1]
        sizes[dim] = v.shape[dim]
        g = torch.randn(sizes).to(device).requires_grad_()
        w = torch._weight_norm(v, g, dim)
        return [x.detach().cpu() for x in (w, *torch.autograd.grad(w.sin().sum(), (v, g)))]

    for got, want in zip(run("tpu"), run("cpu"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
