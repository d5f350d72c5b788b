"""Plain-PyTorch stand-in for the CPU build of `sgl_kernel` (sglang-kernel). Slow, for tests.

Holds what SGLang's CPU + EAGLE path touches, under the names and argument orders that SGLang calls.
"""

from __future__ import annotations

import ctypes

import torch

__version__ = "0.4.10"


# ---- tree building / verify -------------------------------------------------
def build_tree_kernel_efficient_cpu(
    parent_list,
    selected_index,
    verified_seq_len,
    tree_mask,
    positions,
    retrieve_index,
    retrieve_next_token,
    retrieve_next_sibling,
    topk,
    depth,
    draft_token_num,
    tree_mask_mode,
):
    assert int(tree_mask_mode) in (0, 1)
    bs = verified_seq_len.shape[0]
    n = draft_token_num
    prefix = 0
    for b in range(bs):
        sl = int(verified_seq_len[b])
        sel = selected_index[b].tolist() if selected_index.dim() > 1 else selected_index.tolist()
        par = parent_list[b].tolist() if parent_list.dim() > 1 else parent_list.tolist()
        parent_pos = {}
        for i in range(n - 1, 0, -1):
            retrieve_index[b, i] = b * n + i
            tb = sel[i - 1] // topk
            pos = 0
            if tb != 0:
                tok = par[tb]
                if tok in sel[: n - 1]:
                    pos = sel.index(tok) + 1
                else:
                    continue
            parent_pos[i] = pos
            nxt = int(retrieve_next_token[b, pos])
            retrieve_next_token[b, pos] = i
            if nxt != -1:
                retrieve_next_sibling[b, i] = nxt
        retrieve_index[b, 0] = b * n
        for x in range(n):
            anc = [x]
            d = 0
            y = x
            while y in parent_pos and y != 0:
                y = parent_pos[y]
                anc.append(y)
                d += 1
            positions[b * n + x] = sl + d
            row = torch.zeros(n, dtype=torch.bool)
            row[anc] = True
            row[0] = True
            o = (b * n + x) * n if int(tree_mask_mode) == 1 else n * n * b + prefix * n + (sl + n) * x + sl
            tree_mask[o : o + n] = row.to(tree_mask.dtype)
        prefix += sl


def verify_tree_greedy_cpu(
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    target_predict,
):
    bs = candidates.shape[0]
    slots = accept_index.shape[1]
    tp = target_predict.reshape(-1)
    for b in range(bs):
        last = int(retrive_index[b, 0])
        accept_index[b, 0] = last
        num = 0
        cur = 0
        for _ in range(1, slots):
            cur = int(retrive_next_token[b, cur])
            ok = False
            while cur != -1:
                if int(candidates[b, cur]) == int(tp[last]):
                    predicts[last] = tp[last].to(predicts.dtype)
                    num += 1
                    di = int(retrive_index[b, cur])
                    accept_index[b, num] = di
                    last = di
                    ok = True
                    break
                cur = int(retrive_next_sibling[b, cur])
            if not ok:
                break
        accept_token_num[b] = num
        predicts[last] = tp[last].to(predicts.dtype)


# ---- cache locations --------------------------------------------------------
def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start, end, out_cache_loc, pool_len):
    o = 0
    for r, s, e in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=False):
        req_to_token[r, s:e] = out_cache_loc[o : o + e - s].to(req_to_token.dtype)
        o += e - s


def assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, start, end, out_cache_loc, pool_len):
    o = 0
    for r, s, e in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=False):
        out_cache_loc[o : o + e - s] = req_to_token[r, s:e].to(out_cache_loc.dtype)
        o += e - s


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices, req_to_token, seq_lens, out_cache_loc, pool_len, topk, steps
):
    n = topk * steps
    for i, (r, s) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=False)):
        out_cache_loc[i * n : (i + 1) * n] = req_to_token[r, s : s + n].to(out_cache_loc.dtype)


def build_draft_decode_metadata_cpu(req_to_token, req_pool_indices, seq_lens, topk, num_steps, pool_len):
    """rows = (request, topk branch): committed prefix, then that branch's num_steps slots."""
    bs = seq_lens.shape[0]
    out = torch.zeros((bs * topk, pool_len), dtype=req_to_token.dtype)
    for i, (r, s) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=False)):
        for k in range(topk):
            out[i * topk + k, :s] = req_to_token[r, :s]
            a = s + k * num_steps
            out[i * topk + k, s : s + num_steps] = req_to_token[r, a : a + num_steps]
    return out


def fill_bonus_tokens_cpu(accept_tokens, accept_lens, bonus_tokens, stride):
    for i, length in enumerate(accept_lens.tolist()):
        bonus_tokens[i] = accept_tokens.reshape(-1)[stride * i + length - 1].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(accept_index, out_cache_loc, accept_out_cache_loc):
    idx = accept_index.reshape(-1)
    idx = idx[idx > -1].long()
    accept_out_cache_loc[: idx.numel()] = out_cache_loc[idx].to(accept_out_cache_loc.dtype)


def copy_all_layer_kv_cache_cpu(data_ptrs, strides, tgt_loc, src_loc):
    """raw row copies in every K and V buffer; also called once as a warm-up at pool creation."""
    tgt, src = tgt_loc.tolist(), src_loc.tolist()
    for p, st in zip(data_ptrs.tolist(), strides.tolist(), strict=False):
        rows = [ctypes.string_at(p + s * st, st) for s in src]
        for t, r in zip(tgt, rows, strict=False):
            ctypes.memmove(p + t * st, r, st)


def rotate_input_ids_cpu(*a):
    raise NotImplementedError("rotate_input_ids_cpu (multi-layer eagle)")


# ---- attention ops: registered as torch.ops.sgl_kernel.* ---------------------
def _attend(q, k, v, mask, scale, cap):
    """One request: q [heads, queries, dim], k and v [kv_heads, keys, dim], mask [queries, keys]."""
    groups = q.shape[0] // k.shape[0]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
    scores = torch.matmul(q.float(), k.float().transpose(-1, -2)) * scale
    if cap and cap > 0:
        scores = cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~mask, float("-inf"))
    return torch.matmul(torch.softmax(scores, -1), v.float()).to(q.dtype)


def extend_attention_cpu(
    q, k, v, o, k_buf, v_buf, k_scale, v_scale, req_to_token, req_pool_indices, seq_lens,
    extend_seq_lens, extend_start_loc, max_extend_len, scaling, logit_cap, is_cross=False, window=0,
    encoder_lens=None, sinks=None, tree_mask=None, is_causal=True,
):  # fmt: skip
    """`window`: keys that a query sees, itself included; 0 means all of them."""
    assert not is_cross and encoder_lens is None and sinks is None and is_causal
    assert tree_mask is None or not window, "a windowed token tree is not checked against the real kernel"
    offset = 0
    for i in range(seq_lens.shape[0]):
        length, new, start = int(seq_lens[i]), int(extend_seq_lens[i]), int(extend_start_loc[i])
        slots = req_to_token[req_pool_indices[i], :length].long()
        prefix = length - new
        keys, values = k_buf[slots], v_buf[slots]  # set_kv_buffer has saved the new ones
        if tree_mask is not None:
            mask = torch.ones(new, length, dtype=torch.bool)
            mask[:, prefix:] = tree_mask[offset : offset + new * new].view(new, new).bool()
            offset += new * new
        else:
            queries_at, keys_at = torch.arange(prefix, length)[:, None], torch.arange(length)[None, :]
            mask = keys_at <= queries_at
            if window:
                mask &= keys_at > queries_at - window
        attended = _attend(
            q[start : start + new].transpose(0, 1),
            keys.transpose(0, 1),
            values.transpose(0, 1),
            mask,
            scaling,
            logit_cap,
        )
        o[start : start + new] = attended.transpose(0, 1)


def decode_attention_cpu(
    q, k_buf, v_buf, k_scale, v_scale, o, k, v, cache_loc, attn_logits, req_to_token,
    req_pool_indices, seq_lens, scaling, logit_cap, is_cross=False, window=0, encoder_lens=None, sinks=None,
):  # fmt: skip
    """`window` as in `extend_attention_cpu`."""
    assert not is_cross and encoder_lens is None and sinks is None
    if k is not None:  # on decode the real kernel writes K and V itself
        k_buf[cache_loc.long()] = k.view(-1, *k_buf.shape[1:]).to(k_buf.dtype)
        v_buf[cache_loc.long()] = v.view(-1, *v_buf.shape[1:]).to(v_buf.dtype)
    for i in range(seq_lens.shape[0]):
        length = int(seq_lens[i])
        first = max(0, length - window) if window else 0
        slots = req_to_token[req_pool_indices[i], first:length].long()
        mask = torch.ones(1, length - first, dtype=torch.bool)
        o[i] = _attend(
            q[i].unsqueeze(1),
            k_buf[slots].transpose(0, 1),
            v_buf[slots].transpose(0, 1),
            mask,
            scaling,
            logit_cap,
        ).squeeze(1)


def _with_scales(kernel, scales_at):
    """The kernel under the argument order of SGLang before 0.5.20 too, which had no K and V scales."""

    def call(*arguments):
        if isinstance(arguments[scales_at], torch.Tensor) or arguments[scales_at] is None:
            arguments = (*arguments[:scales_at], 1.0, 1.0, *arguments[scales_at:])
        return kernel(*arguments)

    return call


# intel_amx_backend only looks `torch.ops.sgl_kernel.<name>` up and calls it eagerly.
torch.ops.sgl_kernel.extend_attention_cpu = _with_scales(extend_attention_cpu, scales_at=6)
torch.ops.sgl_kernel.decode_attention_cpu = _with_scales(decode_attention_cpu, scales_at=3)
