// Builder: gather and scatter.
#include <algorithm>

#include "csrc/stablehlo/builder_impl.h"

namespace torch_tpu::stablehlo {
namespace {

bool contains(const Dims& dims, int64_t d) {
  return std::find(dims.begin(), dims.end(), d) != dims.end();
}

void append_list(std::string& out, std::string_view name, const Dims& values) {
  if (values.empty()) return;
  out.append(name).append(" = ").append(list_text(values)).append(", ");
}

std::string_view bool_text(bool value) { return value ? "true" : "false"; }

// What gather and scatter share: which operand dimensions the indices address, and which of them
// a window does not have.
struct Addressing {
  std::string_view op;
  const Dims& dropped;  // collapsed or inserted
  const Dims& operand_batching;
  const Dims& indices_batching;
  const Dims& index_map;
  int64_t index_vector_dim;
};

void check_addressing(const Addressing& a, const Value& operand, const Value& indices) {
  if (!is_integer(indices.dtype())) fail(a.op, "integer indices", indices.type());
  if (a.index_vector_dim < 0 || a.index_vector_dim > indices.rank()) {
    fail(a.op, "an index vector dimension up to " + std::to_string(indices.rank()),
         std::to_string(a.index_vector_dim));
  }
  int64_t length = a.index_vector_dim < indices.rank() ? indices.dims()[a.index_vector_dim] : 1;
  check_count(a.op, "mapped dimensions, the length of the index vectors", length,
              a.index_map.size());
  check_dims(a.op, a.index_map, operand.rank());
  check_dims(a.op, a.indices_batching, indices.rank());
  check_count(a.op, "batching dimensions of the indices", a.operand_batching.size(),
              a.indices_batching.size());
  Dims without_window = a.dropped;
  without_window.insert(without_window.end(), a.operand_batching.begin(), a.operand_batching.end());
  check_dims(a.op, without_window, operand.rank());
  for (size_t i = 0; i < a.operand_batching.size(); ++i) {
    int64_t in = a.operand_batching[i], at = a.indices_batching[i];
    if (contains(a.index_map, in) || at == a.index_vector_dim ||
        operand.dims()[in] != indices.dims()[at]) {
      fail(a.op, "batching dimensions of equal size outside the index map",
           types_text(types_of({operand, indices})));
    }
  }
}

}  // namespace

Value Builder::gather(const Value& operand, const Value& start_indices, const GatherDims& dims,
                      const Dims& slice_sizes, bool indices_are_sorted) {
  constexpr std::string_view op = "gather";
  Graph& graph = impl_->graph;
  graph.check(op, operand);
  graph.check(op, start_indices);
  check_addressing({op, dims.collapsed_slice_dims, dims.operand_batching_dims,
                    dims.start_indices_batching_dims, dims.start_index_map, dims.index_vector_dim},
                   operand, start_indices);
  check_count(op, "slice sizes for " + operand.type().str(), operand.rank(), slice_sizes.size());

  Dims window;  // the slice dimensions that stay
  Axes window_axes;
  for (int64_t i = 0; i < operand.rank(); ++i) {
    bool dropped =
        contains(dims.collapsed_slice_dims, i) || contains(dims.operand_batching_dims, i);
    if (slice_sizes[i] < 0 || slice_sizes[i] > operand.dims()[i] ||
        (dropped && slice_sizes[i] > 1)) {
      fail(op, "slices within " + operand.type().str() + ", 1 where collapsed",
           list_text(slice_sizes));
    }
    const bool whole = slice_sizes[i] == operand.dims()[i];
    // One element is taken where the index says, and must count. More may reach beyond.
    if (operand.type().varies(i) && !whole && slice_sizes[i] > 1) {
      unproven(op, "of which a part is taken", operand.type());
    }
    if (dropped) continue;
    window.push_back(slice_sizes[i]);
    window_axes.push_back(whole && slice_sizes[i] > 1 ? axis_of(operand.type(), i) : kWhole);
  }
  check_count(op, "offset dimensions", window.size(), dims.offset_dims.size());
  int64_t batch_rank =
      start_indices.rank() - (dims.index_vector_dim < start_indices.rank() ? 1 : 0);
  int64_t rank = batch_rank + static_cast<int64_t>(window.size());
  check_dims(op, dims.offset_dims, rank);
  if (!std::is_sorted(dims.offset_dims.begin(), dims.offset_dims.end())) {
    fail(op, "sorted offset dimensions", list_text(dims.offset_dims));
  }

  Dims out;
  Axes axes;
  int64_t batch = 0, offset = 0;
  const Type& from = start_indices.type();
  for (int64_t i = 0; i < rank; ++i) {
    if (contains(dims.offset_dims, i)) {
      out.push_back(window[offset]);
      axes.push_back(window_axes[offset++]);
      continue;
    }
    if (batch == dims.index_vector_dim) ++batch;
    out.push_back(from.dims[batch]);
    int32_t axis = axis_of(from, batch);
    for (size_t k = 0; k < dims.start_indices_batching_dims.size(); ++k) {
      if (dims.start_indices_batching_dims[k] != batch) continue;
      axis = unify_dim(op, operand, dims.operand_batching_dims[k], start_indices, batch);
    }
    axes.push_back(axis);
    ++batch;
  }
  std::string text = "dimension_numbers = #stablehlo.gather<";
  append_list(text, "offset_dims", dims.offset_dims);
  append_list(text, "collapsed_slice_dims", dims.collapsed_slice_dims);
  append_list(text, "operand_batching_dims", dims.operand_batching_dims);
  append_list(text, "start_indices_batching_dims", dims.start_indices_batching_dims);
  append_list(text, "start_index_map", dims.start_index_map);
  text += "index_vector_dim = " + std::to_string(dims.index_vector_dim) + ">";
  text.append(", indices_are_sorted = ").append(bool_text(indices_are_sorted));
  text += ", slice_sizes = " + array_attribute(slice_sizes);
  return graph.emit1("stablehlo.gather", {operand, start_indices},
                     make_type(operand.dtype(), std::move(out), std::move(axes)), std::move(text));
}

Value Builder::scatter(const Value& operand, const Value& indices, const Value& updates,
                       const ScatterDims& dims, const Region& body, bool indices_are_sorted,
                       bool unique_indices) {
  constexpr std::string_view op = "scatter";
  Graph& graph = impl_->graph;
  for (const Value* v : {&operand, &indices, &updates}) graph.check(op, *v);
  check_addressing(
      {op, dims.inserted_window_dims, dims.input_batching_dims, dims.scatter_indices_batching_dims,
       dims.scatter_dims_to_operand_dims, dims.index_vector_dim},
      operand, indices);
  if (updates.dtype() != operand.dtype()) {
    fail(op, "updates like " + operand.type().str(), updates.type());
  }
  check_dims(op, dims.update_window_dims, updates.rank());
  if (!std::is_sorted(dims.update_window_dims.begin(), dims.update_window_dims.end())) {
    fail(op, "sorted update window dimensions", list_text(dims.update_window_dims));
  }
  size_t dropped = dims.inserted_window_dims.size() + dims.input_batching_dims.size();
  check_count(op, "update window dimensions", operand.rank() - dropped,
              dims.update_window_dims.size());
  size_t batch_rank = indices.rank() - (dims.index_vector_dim < indices.rank() ? 1 : 0);
  check_count(op, "update dimensions", batch_rank + dims.update_window_dims.size(), updates.rank());
  size_t window = 0;
  Axes axes = axes_of(operand.type());
  for (int64_t i = 0; i < operand.rank(); ++i) {
    if (contains(dims.inserted_window_dims, i) || contains(dims.input_batching_dims, i)) continue;
    const int64_t at = dims.update_window_dims[window++];
    if (updates.dims()[at] > operand.dims()[i]) {
      fail(op, "update windows within " + operand.type().str(), updates.type());
    }
    if (updates.dims()[at] == operand.dims()[i]) {
      axes[i] = join_axes(op, axes[i], axis_of(updates.type(), at), operand.type());
    } else if (updates.type().varies(at)) {
      unproven(op, "of which a part is written", updates.type());
    }
  }
  // Where an index or its update does not count, nothing is written: -1 is nowhere.
  Value where = indices;
  int64_t batch = 0;
  for (int64_t i = 0; i < updates.rank(); ++i) {
    if (contains(dims.update_window_dims, i)) continue;
    if (batch == dims.index_vector_dim) ++batch;
    if (updates.dims()[i] != indices.dims()[batch]) {
      fail(op, "updates batched like the indices " + indices.type().str(), updates.type());
    }
    int32_t axis = unify_dim(op, updates, i, indices, batch);
    for (size_t k = 0; k < dims.scatter_indices_batching_dims.size(); ++k) {
      if (dims.scatter_indices_batching_dims[k] != batch) continue;
      const int64_t in = dims.input_batching_dims[k];
      axes[in] = axis = join_axes(op, axis, axes[in], operand.type());
    }
    where = impl_->with_axis(where, batch, axis);
    ++batch;
  }
  if (!where.type().is_static()) {
    if (is_unsigned(where.dtype()) || dims.scatter_dims_to_operand_dims.empty()) {
      unproven(op, "at these indices", where.type());
    }
    Dims all;
    for (int64_t d = 0; d < where.rank(); ++d) all.push_back(d);
    where = fill_rest(where, splat_int(-1, Type(where.dtype(), {})), all);
    indices_are_sorted = unique_indices = false;
  }

  Type scalar_type(operand.dtype(), {});
  int32_t region = graph.region(op, {scalar_type, scalar_type}, body, /*isolated=*/true);
  if (graph.result_types(region) != std::vector<Type>{scalar_type}) {
    fail(op, "a body that returns " + scalar_type.str(), types_text(graph.result_types(region)));
  }
  std::string text = "indices_are_sorted = ";
  text.append(bool_text(indices_are_sorted));
  text += ", scatter_dimension_numbers = #stablehlo.scatter<";
  append_list(text, "update_window_dims", dims.update_window_dims);
  append_list(text, "inserted_window_dims", dims.inserted_window_dims);
  append_list(text, "input_batching_dims", dims.input_batching_dims);
  append_list(text, "scatter_indices_batching_dims", dims.scatter_indices_batching_dims);
  append_list(text, "scatter_dims_to_operand_dims", dims.scatter_dims_to_operand_dims);
  text += "index_vector_dim = " + std::to_string(dims.index_vector_dim) + ">";
  text.append(", unique_indices = ").append(bool_text(unique_indices));
  return graph.emit1("stablehlo.scatter", {operand, where, updates},
                     make_type(operand.dtype(), operand.dims(), std::move(axes)), std::move(text),
                     Form::kGeneric, {region});
}

}  // namespace torch_tpu::stablehlo
