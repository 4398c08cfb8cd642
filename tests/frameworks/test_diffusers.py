"""diffusers on the device, unchanged: a text-to-image pipeline, UNet, DiT and VAE in training,
LoRA. Small random weights, no network; every number is compared with the CPU's."""

from __future__ import annotations

import copy
import os
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault(
    "TORCH_TPU_CACHE_DIR", str(Path(__file__).resolve().parents[2] / "build" / "test-cache")
)
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

diffusers = pytest.importorskip("diffusers")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

import torch_tpu  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "frameworks" / "diffusers_lora.py"
example = runpy.run_path(str(EXAMPLE))
tiny_unet, tiny_vae = example["tiny_unet"], example["tiny_vae"]


def tiny_dit() -> Any:
    torch.manual_seed(2)
    return diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        sample_size=8,
        num_embeds_ada_norm=100,
    )


@pytest.fixture(scope="module")
def pipe() -> Any:
    return example["tiny_pipeline"]()


def draw(pipe: Any, **options: Any) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(7)
    out = pipe(
        ["a cat", "two dogs"],
        num_inference_steps=2,
        generator=generator,
        height=16,
        width=16,
        output_type="pt",
        **options,
    )
    return out.images


def close(got: Any, expected: Any, atol: float = 2e-5) -> None:
    torch.testing.assert_close(got.cpu(), expected, atol=atol, rtol=1e-4)


def test_text_to_image(pipe: Any, tmp_path: Path) -> None:
    torch_tpu._C._reset_fallback_counts()
    expected = draw(pipe.to("cpu"))
    images = draw(pipe.to("tpu"))
    assert images.device.type == "tpu"
    close(images, expected)
    # Saved and loaded, with another scheduler, from noise of the device's own generator.
    pipe.save_pretrained(tmp_path)
    loaded = diffusers.StableDiffusionPipeline.from_pretrained(tmp_path).to("tpu")
    loaded.set_progress_bar_config(disable=True)
    close(draw(loaded), expected)
    loaded.scheduler = diffusers.EulerDiscreteScheduler.from_config(loaded.scheduler.config)
    noise = torch.Generator("tpu").manual_seed(3)
    pictures = loaded("a cat", num_inference_steps=2, generator=noise, height=16, width=16).images
    assert pictures[0].size == (16, 16)
    assert torch_tpu.coverage() == {}  # nothing ran on the CPU


def train(
    model: Any, device: str, loss_of: Callable[..., torch.Tensor]
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Two steps; the losses and what was trained."""
    model = copy.deepcopy(model).to(device).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.05, momentum=0.9)
    losses = []
    for step in range(2):
        torch.manual_seed(100 + step)
        loss = loss_of(model, device)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    state = model.state_dict()
    return losses, {name: state[name].cpu() for name in names}


def noise_loss(call: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """How a denoiser is trained: it tells the noise that was added."""
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=100)

    def loss_of(model: Any, device: str) -> torch.Tensor:
        latents, noise = torch.randn(2, 2, 4, 8, 8).to(device).unbind(0)
        steps = torch.randint(0, 100, (2,)).to(device)
        noisy = scheduler.add_noise(latents, noise, steps)
        return torch.nn.functional.mse_loss(call(model, noisy, steps), noise)

    return loss_of


def unet_call(model: Any, noisy: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    words = torch.linspace(-1, 1, 2 * 5 * 16).view(2, 5, 16).to(noisy.device)
    return model(noisy, steps, encoder_hidden_states=words).sample


def dit_call(model: Any, noisy: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    labels = torch.tensor([3, 5]).to(noisy.device)
    return model(noisy, timestep=steps, class_labels=labels).sample


def vae_loss(model: Any, device: str) -> torch.Tensor:
    images = torch.rand(2, 3, 16, 16).to(device)
    latent = model.encode(images).latent_dist
    back = model.decode(latent.mode()).sample
    return torch.nn.functional.mse_loss(back, images) + 1e-3 * latent.kl().mean()


@pytest.mark.parametrize(
    ("make", "loss_of"),
    [
        pytest.param(tiny_unet, noise_loss(unet_call), id="unet"),
        pytest.param(tiny_dit, noise_loss(dit_call), id="dit"),
        pytest.param(tiny_vae, vae_loss, id="vae"),
    ],
)
def test_training(make: Callable[[], Any], loss_of: Callable[..., torch.Tensor]) -> None:
    model = make()
    # DiT drops labels at random in training; the CPU draws other numbers than the device.
    for part in model.modules():
        if hasattr(part, "dropout_prob"):
            part.dropout_prob = 0.0
    expected, parameters = train(model, "cpu", loss_of)
    losses, trained = train(model, "tpu", loss_of)
    assert losses == pytest.approx(expected, rel=1e-4)
    for name, parameter in parameters.items():
        close(trained[name], parameter, atol=1e-4)


def test_bfloat16_and_compile() -> None:
    model = tiny_unet().to("tpu", torch.bfloat16)
    noisy = torch.randn(2, 4, 8, 8).to("tpu", torch.bfloat16)
    steps = torch.tensor([5, 50], device="tpu")

    def call(model: Any) -> torch.Tensor:
        words = torch.linspace(-1, 1, 160).view(2, 5, 16).to("tpu", torch.bfloat16)
        with torch.no_grad():
            return model(noisy, steps, encoder_hidden_states=words).sample

    eager = call(model)
    compiled = call(torch.compile(model))
    assert compiled.dtype == torch.bfloat16
    torch.testing.assert_close(compiled, eager, atol=5e-2, rtol=5e-2)


def test_lora(pipe: Any, tmp_path: Path) -> None:
    unet = tiny_unet()
    unet.requires_grad_(False)
    torch.manual_seed(4)
    unet.add_adapter(
        peft.LoraConfig(r=2, lora_alpha=2, target_modules=["to_q", "to_v"], init_lora_weights=False)
    )
    expected, parameters = train(unet, "cpu", noise_loss(unet_call))
    losses, trained = train(unet, "tpu", noise_loss(unet_call))
    assert losses == pytest.approx(expected, rel=1e-4)
    assert all("lora" in name for name in trained)
    for name, parameter in parameters.items():
        close(trained[name], parameter, atol=1e-4)
    # Into a pipeline on the device, by a file.
    unet.load_state_dict({**unet.state_dict(), **trained})
    diffusers.StableDiffusionPipeline.save_lora_weights(
        tmp_path, unet_lora_layers=peft.utils.get_peft_model_state_dict(unet)
    )
    plain = draw(pipe.to("tpu"))
    pipe.load_lora_weights(tmp_path)
    images = draw(pipe)
    assert not torch.equal(images, plain)
    close(images, draw(pipe.to("cpu")))
    pipe.to("tpu").fuse_lora()
    close(draw(pipe), images.cpu(), atol=1e-4)
    pipe.unfuse_lora()
    pipe.unload_lora_weights()
    close(draw(pipe), plain.cpu())


def test_example() -> None:
    expected = example["main"](["--device", "cpu", "--steps", "3"])
    losses = example["main"](["--device", "tpu", "--steps", "3"])
    assert losses == pytest.approx(expected, rel=1e-3)
