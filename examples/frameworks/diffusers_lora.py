"""A text-to-image pipeline of diffusers on the device: a LoRA is trained, then pictures are drawn
with it. Weights are small and random, so that nothing is downloaded; with
`StableDiffusionPipeline.from_pretrained(name)` in place of `tiny_pipeline` it is a real one.

    python examples/frameworks/diffusers_lora.py --device tpu
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from peft import LoraConfig
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer


def tiny_unet() -> UNet2DConditionModel:
    torch.manual_seed(0)
    return UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        norm_num_groups=4,
        attention_head_dim=4,
    )


def tiny_vae() -> AutoencoderKL:
    torch.manual_seed(1)
    return AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=16,
    )


def tiny_pipeline() -> StableDiffusionPipeline:
    """A whole Stable Diffusion, whose words are letters."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = [*letters, *(f"{letter}</w>" for letter in letters)]
    words += ["<|startoftext|>", "<|endoftext|>"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "vocab.json").write_text(json.dumps({w: i for i, w in enumerate(words)}))
        (Path(folder) / "merges.txt").write_text("#version: 0.2\n")
        tokenizer = CLIPTokenizer(
            f"{folder}/vocab.json", f"{folder}/merges.txt", model_max_length=16
        )
    torch.manual_seed(2)
    config = CLIPTextConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        bos_token_id=len(words) - 2,
        eos_token_id=len(words) - 1,
    )
    pipe = StableDiffusionPipeline(
        vae=tiny_vae(),
        text_encoder=CLIPTextModel(config),
        tokenizer=tokenizer,
        unet=tiny_unet(),
        scheduler=DDIMScheduler(beta_schedule="scaled_linear", steps_offset=1, clip_sample=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def train_lora(pipe: StableDiffusionPipeline, steps: int) -> list[float]:
    """Teaches the UNet to tell the noise in one picture; gives the losses."""
    pipe.unet.requires_grad_(False)
    pipe.unet.add_adapter(
        LoraConfig(r=4, lora_alpha=4, target_modules=["to_q", "to_v", "to_out.0"])
    )
    trained = [p for p in pipe.unet.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    torch.manual_seed(3)
    picture = torch.rand(1, 3, 16, 16).to(pipe.device) * 2 - 1
    with torch.no_grad():
        latents = pipe.vae.encode(picture).latent_dist.mode()
        tokens = pipe.tokenizer("a cat", padding="max_length", return_tensors="pt").input_ids
        words = pipe.text_encoder(tokens.to(pipe.device))[0]
    losses = []
    for _ in range(steps):
        noise = torch.randn(latents.shape).to(pipe.device)
        when = torch.randint(0, 1000, (1,)).to(pipe.device)
        noisy = pipe.scheduler.add_noise(latents, noise, when)
        loss = F.mse_loss(pipe.unet(noisy, when, words).sample, noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main(arguments: list[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--steps", type=int, default=20, help="of training")
    parser.add_argument("--out", help="where to write the picture")
    options = parser.parse_args(arguments)

    pipe = tiny_pipeline().to(options.device)  # the line that chooses the device
    losses = train_lora(pipe, options.steps)
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} on {pipe.device}")
    generator = torch.Generator("cpu").manual_seed(0)
    result = pipe("a cat", num_inference_steps=5, generator=generator, height=16, width=16)
    if options.out:
        result.images[0].save(options.out)
    print(f"a picture of {result.images[0].size}")
    return losses


if __name__ == "__main__":
    main()
