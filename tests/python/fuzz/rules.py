"""The lines a program is made of, as templates.

A letter in braces stands for a tensor of the pool: f float, n integer, b bool, c complex, x any of
these; w, k, h, z a float, integer, bool, complex one that may be written, y any such; p a leaf that
requires grad, g one that also has a gradient.

With a digit, as {f1}, it has the dtype of the line's first tensor and expands to its shape; {F1}
has exactly its shape. 8 or 9 means that it shares no memory with the first, for ops that read and
write in an order of their own; {f9} may then have any shape.

{new} is a new name, {scalar} that of a number; {s} a float, {j} a small integer, {dim} a dim of the
first tensor, {seed} a number for `draw`, {shape}, {dtype} and {float} (a floating dtype) those of a
new tensor; {mine} a tensor that may be dropped, {loss} a result of the graph.

What the CPU does not take is not used, so a template need not be right for every choice.
"""

from __future__ import annotations

POINTWISE = [
    *("{new} = torch.tanh({f})", "{new} = torch.sigmoid({f})", "{new} = -{f}", "{new} = {f}.abs()"),
    *("{new} = torch.sin({f})", "{new} = F.gelu({f})", "{new} = F.relu({f})", "{new} = 1 - {f}"),
    *("{new} = {f} * {s} + {f1}", "{new} = {f} + {f1}", "{new} = {f} * {f1}", "{new} = {f} - {s}"),
    *("{new} = {f} / ({f1}.abs() + 1)", "{new} = torch.exp(-{f}.abs())", "{new} = {f}.square()"),
    *("{new} = torch.where({b1}, {f}, {f1})", "{new} = torch.where({b1}, {f}, {s})"),
    *("{new} = torch.addcmul({f}, {f1}, {f2}, value={s})", "{new} = torch.lerp({f}, {f1}, {s})"),
    *("{new} = {f}.clamp(-0.5, {s})", "{new} = torch.maximum({f}, {f1})", "{new} = {f} + {n1}"),
    *("{new} = torch.add({f}, {f1}, alpha={s})", "{new} = {f} * torch.tensor({s})"),
    *("{new} = {n} + {n1}", "{new} = {n} * {j}", "{new} = {n} % 5", "{new} = {n} // 3"),
    *(
        "{new} = {n} - {n1}",
        "{new} = {n} ^ {j}",
        "{new} = {n}.clamp(-3, {j})",
        "{new} = {n} * {b1}",
    ),
    *("{new} = {n} > {j}", "{new} = {n} == {n1}", "{new} = ~{b}", "{new} = {b} & {b1}"),
    *("{new} = {b} | {b1}", "{new} = {f} > 0.1173", "{new} = {f} <= {f1} + 0.0371"),
    *("{new} = {c} * {c1}", "{new} = {c}.abs()", "{new} = {c} + {f1}", "{new} = {c}.conj() * 2"),
    "{new} = torch.complex({f}, {F1})",
]

MATMUL = [
    *("{new} = torch.tanh({f} @ {f1})", "{new} = {f} @ {f}.mT", "{new} = F.linear({f}, {f1})"),
    *("{new} = torch.addmm({f}, {f1}, {f2}, beta={s}, alpha=0.5)", "{new} = torch.mv({f}, {f1})"),
    *("{new} = torch.einsum('...ij,...kj->...ik', {f}, {f1})", "{new} = torch.bmm({f}, {F1})"),
    *("{new} = F.layer_norm({f}, {f}.shape[-1:])", "{new} = {n} @ {n1}"),
]

REDUCE = [
    *("{new} = {f}.sum({dim})", "{new} = {f}.mean({dim}, keepdim=True)", "{new} = {f}.mean()"),
    *("{new} = {f}.amax({dim})", "{new} = {f}.softmax({dim})", "{new} = {f}.cumsum({dim})"),
    *("{new} = {f}.sum()", "{new} = {f}.logsumexp({dim})", "{new} = {f}.var({dim}, correction=0)"),
    *("{new} = {n}.sum({dim})", "{new} = {n}.argmax({dim})", "{new} = {n}.amin({dim})"),
    *(
        "{new} = {b}.any({dim})",
        "{new} = {b}.sum()",
        "{new} = {n}.sort(dim={dim}, stable=True).indices",
    ),
    *("{new} = {f}.sort({dim}).values", "{new} = torch.cat([{f}, {F1}], {dim})"),
    *("{new} = torch.stack([{f}, {F1}], {dim})", "{new} = {n}.cumsum({dim})"),
]

VIEWS = [
    *("{new} = {x}[1:3]", "{new} = {x}[::2]", "{new} = {x}[..., 2:]", "{new} = {x}[-1]"),
    *("{new} = {x}.transpose(0, -1)", "{new} = {x}.mT", "{new} = {x}[..., 1::2]"),
    *("{new} = {x}.reshape(-1)", "{new} = {x}.view(2, -1)", "{new} = {x}.reshape(-1, 4)"),
    *("{new} = {x}.unsqueeze({dim})", "{new} = {x}[:1].expand_as({x})", "{new} = {x}[None]"),
    *("{new} = {x}.narrow({dim}, 1, 2)", "{new} = {x}.select({dim}, 1)", "{new} = {x}.squeeze()"),
    *("{new} = {x}.as_strided((2, 2), (1, 2), 1)", "{new} = {x}.as_strided((2, 4), (1, 1))"),
    *("{new} = {x}.unfold(0, 2, 1)", "{new} = {x}.expand(2, *{x}.shape)", "{new} = {x}.detach()"),
    *("{new} = {x}.diagonal()", "{new} = {x}.view_as({x})", "{new} = {x}.permute(1, 0, 2)"),
    *("{new} = {x}.chunk(2, {dim})[1]", "{new} = {x}.movedim(0, -1)", "{new} = {x}[:0]"),
    *("{new} = {c}.real", "{new} = {c}.imag", "{new} = torch.view_as_real({c})"),
    *("{new} = {c}.conj()", "{new} = {n}.view(torch.int32)"),
]

COPIES = [
    *("{new} = {x}.clone()", "{new} = {x}.contiguous()", "{new} = {n}.to({dtype})"),
    *("{new} = {f}.to({float})", "{new} = {b}.to({dtype})"),
    *("{new} = {f}.double()", "{new} = {f}.float()", "{new} = {n}.to(torch.float32)"),
    *("{new} = {n}.int()", "{new} = {b}.float()", "{new} = {x}.flip(0)", "{new} = {x}.roll(1, 0)"),
    "{new} = {x}.contiguous(memory_format=torch.channels_last)",
    "{new} = {x}.expand(2, 2, 4, 4).to(memory_format=torch.channels_last)",
    *("{new} = {x}.repeat(2, 1)", "{new} = {x}.to(device)", "{new} = {x}.clone().transpose(0, 1)"),
]

FACTORIES = [
    *("{new} = torch.zeros({shape}, device=device)", "{new} = torch.ones_like({x})"),
    *("{new} = torch.full({shape}, {s}, device=device)", "{new} = torch.arange(4, device=device)"),
    *("{new} = torch.eye(4, device=device)", "{new} = torch.full_like({f}, {s})"),
    *("{new} = {x}.new_zeros({shape})", "{new} = torch.empty_like({f}).fill_({s})"),
    *(
        "{new} = torch.linspace(0, 1, 4, device=device)",
        "{new} = torch.scalar_tensor({s}).to(device)",
    ),
]

UPLOADS = [
    "{new} = draw({seed}, {shape}, {dtype}).to(device)",
    "{w}.copy_(draw({seed}, tuple({w}.shape), torch.float32))",
    "{y}.copy_({x1}.cpu())",
    # A host buffer that is used again at once.
    "host = draw({seed}, {shape})\n{new} = host.to(device, copy=True)\nhost.fill_(7)",
    "host = draw({seed}, tuple({w}.shape))\n{w}.copy_(host, non_blocking=False)\nhost.fill_(7)",
    "{new} = torch.tensor([[{s}, 1.0], [0.5, {s}]], device=device)",
]

WRITES = [
    *("{w}.add_({s})", "{w}.mul_({s})", "{w}.add_({f1}, alpha={s})", "{w}.mul_({f1})"),
    *("{w}.copy_({f1})", "{w}.fill_({s})", "{w}.zero_()", "{w}.tanh_()", "{w}.neg_()"),
    *("{w}.sub_({f1})", "{w}.clamp_(-1, 1)", "{w}.addcmul_({f1}, {f2}, value={s})"),
    *("{w}[0] = {s}", "{w}[..., -1] += {s}", "{w}[1:].mul_({s})", "{w}[::2].copy_({w}[1::2])"),
    *("{w}.masked_fill_({b1}, {s})", "{w}[{b1}] = {s}", "{w}.lerp_({f1}, 0.25)"),
    *("{w}.t().add_({s})", "{w}.view(-1)[1:3].fill_({s})", "{w}.sigmoid_()", "{w}.copy_({n1})"),
    *("{w}.squeeze().add_({s})", "{w}.mT.mul_(0.5)", "{w} += {f1}", "{w} *= {s}"),
    *(
        "{w}.addmm_({f8}, {f9}, beta=0.5)",
        "{w}.transpose(0, -1)[0].add_({s})",
        "{w}.detach().add_({s})",
    ),
    *("{k}.add_({j})", "{k}.mul_({n1})", "{k}.fill_({j})", "{k}[1:] = {j}", "{k}.remainder_(7)"),
    *("{h}.logical_not_()", "{h}.logical_and_({b1})", "{h}[0] = True", "{k}.copy_({b1})"),
    *("{z}.mul_({c1})", "{z}.real.mul_({s})", "{z}.imag.fill_({s})", "{z}.copy_({f1})"),
    "torch.view_as_real({z})[..., 1].add_({s})",
]

INDEXED = [
    "{w}.index_put_((torch.tensor([1, 0], device=device),), {F9}[:2])",
    "{w}.index_put_((torch.tensor([1, 1], device=device),), {F9}[:2], accumulate=True)",
    "{w}[torch.tensor([0, -1], device=device)] = {s}",
    "{w}.scatter_(0, torch.ones_like({w}[:1], dtype=torch.int64), {F9})",
    "{w}.scatter_add_(0, {n1}.clamp(0, 1).long(), {F9})",
    "{w}.index_add_(0, torch.tensor([1, 0], device=device), {F9}[:2], alpha={s})",
    "{w}.index_fill_({dim}, torch.tensor([1], device=device), {s})",
    "{w}.index_copy_(0, torch.tensor([1, 0], device=device), {F9}[:2])",
    "{w}.masked_scatter_({b1}, {F9})",
    "{new} = {x}[torch.tensor([1, 0, 1], device=device)]",
    "{new} = {f}.gather({dim}, {n1}.long().clamp(0, 1).expand_as({f}))",
    "{new} = {f}.index_select({dim}, torch.tensor([1, 0], device=device))",
    "{new} = F.embedding({n}.long().clamp(0, 1), {f})",
    *(
        "{new} = {f}[{b1}]",
        "{new} = {n}.nonzero()",
        "{new} = torch.take({f}, {n}.long().clamp(0, 0))",
    ),
]

OUTS = [
    *(
        "torch.add({w}, {F1}, out={w})",
        "torch.mul({F1}, {s}, out={w})",
        "torch.tanh({F1}, out={w})",
    ),
    *("torch.matmul({f8}, {f9}, out={w})", "torch.sub({F1}, {F2}, alpha={s}, out={w})"),
    *("torch.cat([{F8}[:1], {F9}[1:]], out={w})", "torch.add({N1}, {j}, out={k})"),
    # Resized. contiguous(): PyTorch's meta kernels, and so the device, give such a result strides
    # of its own, where the CPU takes the operand's.
    "{new} = torch.empty(0, device=device)\ntorch.add({f}.contiguous(), {s}, out={new})",
    "{new} = torch.empty(2, 2, device=device)\ntorch.mul({f}.contiguous(), {s}, out={new})",
]

FOREACH = [
    "torch._foreach_add_([{w}, {w9}], {s})",
    "torch._foreach_mul_([{w}, {w9}], [{s}, {s}])",
    "torch._foreach_add_([{w}, {w9}], [{F1}, {w9} * 0.5], alpha={s})",
    "torch._foreach_lerp_([{w}, {w9}], [{F1}, {w9} * 2], 0.25)",
    "{new}, {new2} = torch._foreach_mul([{f}, {w9}], {s})",
    "torch._foreach_addcmul_([{w}], [{F1}], [{F2}], value={s})",
    "torch._foreach_zero_([{w}])",
    "torch._foreach_copy_([{w}], [{F1}])",
]

# Values that a line may take from the device to the host for later lines.
SCALARS = [
    *(
        "{scalar} = {f}.mean().item()",
        "{scalar} = float({f}.tanh().sum())",
        "{scalar} = {n}.sum().item() % 3",
    ),
    "{scalar} = 0.5 if bool({b}.any()) else -0.5",
]

READS = [
    *(
        "seen.append({f}.sum().item())",
        "seen.append({x}.tolist())",
        "seen.append({n}.max().item())",
    ),
    *(
        "seen.append({n}.tolist())",
        "seen.append({f}.cpu().tolist())",
        "seen.append(bool({b}.all()))",
    ),
    *("seen.append(str({n}).rpartition(']')[0])", "seen.append(bool(str({x})))"),
    *("seen.append({f}.numpy(force=True).tolist())", "seen.append(tuple({x}.shape))"),
]

DROPS = ["del {mine}"]

# Lines of a graph. No kinks: at a kink, rounding decides the gradient.
GRAPH = [
    *("{new} = torch.tanh({f})", "{new} = {f} * {f1}", "{new} = {f} + {f1}", "{new} = {f} * {s}"),
    *("{new} = torch.tanh({f} @ {f1})", "{new} = {f}.softmax({dim})", "{new} = {f}.mean({dim})"),
    *("{new} = {f}[1:3]", "{new} = {f}.mT", "{new} = {f}.reshape(-1)", "{new} = {f}.clone()"),
    *("{new} = F.silu({f})", "{new} = F.layer_norm({f}, {f}.shape[-1:])", "{new} = {f}.detach()"),
    *("{new} = {f}.expand(2, *{f}.shape)", "{new} = torch.stack([{f}, {F1}])", "{w}.mul_({s})"),
    *(
        "{w}[0].add_({f1}[0])",
        "{w}.add_({f1})",
        "{w}[1:].mul_({s})",
        "{new} = torch.where({b1}, {f}, 0.0)",
    ),
    *("{new} = {f}[torch.tensor([1, 0, 1], device=device)]", "{new} = torch.sigmoid({f})"),
    "with torch.no_grad():\n    {new} = {f} * {s}",
]

BACKWARD = [
    "{loss}.square().mean().backward()",
    "{loss}.sum().backward()",
    "{loss}.backward(torch.ones_like({loss}) * {s})",
    "{loss}.sum().backward(retain_graph=True)\n{loss}.mean().backward()",
    "{new}, = torch.autograd.grad({loss}.square().sum(), {p}, allow_unused=True)",
]

STEPS = [
    "with torch.no_grad():\n    {g}.sub_({g}.grad, alpha=0.1)",
    "with torch.no_grad():\n    {g} -= 0.1 * {g}.grad",
    *("{g}.grad.mul_({s})", "{g}.grad.zero_()", "{g}.grad = None", "{new} = {g}.grad"),
    *("{g}.grad[0] = {s}", "{new} = {g}.grad.clone()", "{g}.data.mul_(0.5)"),
    "torch.nn.utils.clip_grad_norm_([{g}], 0.5)",
    "torch._foreach_add_([{g}.data], [{g}.grad], alpha=-0.05)",
]

# How often each family is chosen.
FAMILIES: list[tuple[int, list[str]]] = [
    *((20, POINTWISE), (5, MATMUL), (8, REDUCE), (18, VIEWS), (6, COPIES), (4, FACTORIES)),
    *((5, UPLOADS), (22, WRITES), (7, INDEXED), (5, OUTS), (4, FOREACH), (2, SCALARS), (6, READS)),
    *((4, DROPS),),
]
