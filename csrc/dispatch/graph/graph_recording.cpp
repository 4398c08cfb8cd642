#include "csrc/dispatch/graph/graph_recording.h"

#include <algorithm>
#include <numeric>

#include <ATen/MemoryOverlap.h>

#include "csrc/base/hash.h"
#include "csrc/device/tensor.h"
#include "csrc/dispatch/call/compiler_options.h"
#include "csrc/dispatch/report/waits.h"
#include "csrc/trace/view.h"

namespace torch_tpu::dispatch {
namespace {

using stablehlo::DType;

constexpr int kMaxEarlyReads = 4;  // a few losses; more single elements are hardly all read

bool on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

// The dims from the slowest to the fastest in memory, where that is another order than theirs and
// all elements lie apart.
std::optional<std::vector<int64_t>> memory_order(const at::Tensor& tensor) {
  if (!on_device(tensor) || tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg()) {
    return std::nullopt;
  }
  std::vector<int64_t> order(static_cast<size_t>(tensor.dim()));
  std::iota(order.begin(), order.end(), 0);
  for (const int64_t d : order) {
    if (tensor.stride(d) <= 0) return std::nullopt;  // repeated along it
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return tensor.stride(a) > tensor.stride(b); });
  if (std::is_sorted(order.begin(), order.end())) return std::nullopt;
  return order;
}

}  // namespace

GraphRecording::GraphRecording(int device)
    : recorder_(std::make_unique<Recorder>(device)), made_(c10::make_intrusive<CompiledGraph>()) {
  made_->device_ = device;
  recorder_->close();
}

void GraphRecording::check_argument(const at::Tensor& tensor) const {
  TORCH_CHECK_NOT_IMPLEMENTED(on_device(tensor) && tensor.device().index() == made_->device_,
                              "an argument on ", tensor.device(),
                              " of a program on tpu:", made_->device_);
}

at::Tensor GraphRecording::add_padded(const at::Tensor& tensor, trace::ShapeRef sizes) {
  check_argument(tensor);
  const trace::Shape strides = trace::contiguous_strides(sizes);
  const DType dtype = ops::to_dtype(tensor.scalar_type());
  made_->inputs_.push_back(
      {CompiledGraph::View(tensor.scalar_type(), {trace::to_shape(sizes), strides, 0}), dtype,
       trace::to_shape(sizes), strides, values_.size(), /*padded=*/true});
  made_->bases_.push_back(stand_ins_.size());
  values_.push_back(recorder_->add_argument(dtype, sizes, strides));
  stand_ins_.push_back(
      device::make_tensor(sizes, strides, tensor.scalar_type(), made_->device_, values_.back()));
  return stand_ins_.back();
}

void GraphRecording::add_bounded_result(const at::Tensor& tensor, BoundedResult how) {
  made_->bounds_.resize(results_.size() + 1);
  made_->bounds_.back() = std::move(how);
  results_.push_back(tensor);
}

at::Tensor GraphRecording::add_argument(const at::Tensor& tensor) {
  check_argument(tensor);
  const trace::ValuePtr value = value_of(tensor);
  TORCH_CHECK_NOT_IMPLEMENTED(value, "an argument without memory");
  return add(tensor, *value);
}

at::Tensor GraphRecording::add_parameter(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                         c10::ScalarType dtype) {
  auto value = c10::make_intrusive<trace::DeviceValue>(
      /*recorded_id=*/int64_t{0}, ops::to_dtype(dtype), sizes, strides, made_->device_);
  return add(device::make_tensor(sizes, strides, dtype, made_->device_, value), *value);
}

at::Tensor GraphRecording::add(const at::Tensor& tensor, const trace::DeviceValue& value) {
  given_.push_back(tensor);  // its cell stays the only one at its address
  const device::Cell* cell = device::cell_of(*tensor.unsafeGetTensorImpl());
  const auto [at, fresh] = known_.try_emplace(cell, values_.size());
  const size_t base = at->second;
  c10::Storage storage;
  if (fresh) {
    values_.push_back(recorder_->add_argument(value));
    made_->bases_.push_back(stand_ins_.size());
    storage = device::make_storage(made_->device_, tensor.storage().nbytes(), values_.back());
  } else {
    storage = stand_ins_[made_->bases_[base]].storage();
  }
  made_->inputs_.push_back({CompiledGraph::View(tensor), value.dtype(),
                            trace::to_shape(value.dims()), trace::to_shape(value.strides()), base});
  stand_ins_.push_back(recorded_stand_in(tensor, std::move(storage)));
  return stand_ins_.back();
}

void GraphRecording::add_result(const at::Tensor& tensor) { results_.push_back(tensor); }

// Storages in which results overlap.
std::unordered_set<const device::Cell*> GraphRecording::overlapping() const {
  std::unordered_map<const device::Cell*, std::vector<c10::TensorImpl*>> by_cell;
  std::unordered_set<const device::Cell*> out;
  for (const at::Tensor& result : results_) {
    if (!on_device(result)) continue;
    c10::TensorImpl* impl = result.unsafeGetTensorImpl();
    const device::Cell* cell = device::cell_of(*impl);
    if (!cell->load()) continue;
    std::vector<c10::TensorImpl*>& others = by_cell[cell];
    for (c10::TensorImpl* other : others) {
      if (other != impl && at::get_overlap_status(other, impl) != at::MemOverlapStatus::No) {
        out.insert(cell);
      }
    }
    others.push_back(impl);
  }
  return out;
}

std::string GraphRecording::end(trace::Runnable& program, Sharing sharing, size_t visible) {
  int next = 0;
  for (size_t i = 0; i < values_.size(); ++i) {
    const at::Tensor& first = stand_ins_[made_->bases_[i]];
    const trace::ValuePtr now = device::cell_of(*first.unsafeGetTensorImpl())->load();
    if (now == values_[i]) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(!made_->inputs_[made_->bases_[i]].padded,
                                "a write to an argument that varies");
    TORCH_CHECK_NOT_IMPLEMENTED(now && now->bytes() == values_[i]->bytes(),
                                "an argument whose memory is replaced by another's");
    recorder_->add_write(i, *values_[i], now);
    made_->writes_ = true;
    ++next;
  }
  std::unordered_map<const c10::TensorImpl*, int> places;
  for (size_t i = 0; i < stand_ins_.size(); ++i) {
    places.emplace(stand_ins_[i].unsafeGetTensorImpl(), -1 - static_cast<int>(i));
  }
  // Results over the memory of an argument stay there, as AOTAutograd asks them where they lie.
  std::unordered_map<const device::Cell*, int> bases;
  for (size_t i = 0; i < stand_ins_.size(); ++i) {
    bases.emplace(device::cell_of(*stand_ins_[i].unsafeGetTensorImpl()), -1 - static_cast<int>(i));
  }
  if (sharing == Sharing::kNone) bases.clear();
  const auto shared =
      sharing == Sharing::kAll ? overlapping() : std::unordered_set<const device::Cell*>();
  int early_reads = 0;
  for (size_t i = 0; i < results_.size(); ++i) {
    const at::Tensor& result = results_[i];
    const c10::TensorImpl& impl = *result.unsafeGetTensorImpl();
    const auto [place, fresh] = places.try_emplace(&impl, next);
    if (!fresh && result.defined()) {
      made_->results_.push_back({place->second, std::nullopt});
      continue;
    }
    const device::Cell* cell = on_device(result) ? device::cell_of(impl) : nullptr;
    if (cell != nullptr && (bases.count(cell) != 0 || shared.count(cell) != 0)) {
      places.erase(place);
      const auto [base, first] = bases.try_emplace(cell, next);
      if (first) {
        recorder_->add_base(result);
        ++next;
      }
      made_->results_.push_back({base->second, CompiledGraph::View(result)});
      continue;
    }
    if (const auto order = i < visible ? std::nullopt : memory_order(result)) {
      const at::Tensor ordered = result.permute(*order);
      recorder_->add_result(ordered, /*may_repeat=*/false);
      const trace::Shape dense = trace::contiguous_strides(ordered.sizes());
      trace::Geometry geometry{trace::to_shape(result.sizes()), dense, 0};
      for (size_t d = 0; d < order->size(); ++d) geometry.strides[(*order)[d]] = dense[d];
      places.erase(place);  // it names the tensor, of which the program's output is the base
      made_->results_.push_back(
          {next++, CompiledGraph::View(result.scalar_type(), std::move(geometry))});
      continue;
    }
    recorder_->add_result(result, /*may_repeat=*/true);
    const bool early =
        i < visible && early_reads < kMaxEarlyReads && on_device(result) && result.dim() == 0;
    if (early) ++early_reads;
    made_->results_.push_back({next++, std::nullopt, early});
  }
  made_->ops_ = recorder_->ops();
  program.num_inputs = static_cast<int>(values_.size());
  return recorder_->finish(program);
}

void GraphRecording::module(const std::string& name, RecordedModule& out) {
  out.description.name = name;
  out.text = end(out.description, Sharing::kNone, results_.size());
  for (const CompiledGraph::Result& result : made_->results_) out.results.push_back(result.from);
}

CompiledPtr GraphRecording::finish(const std::string& name, bool share, size_t visible) {
  auto program = c10::make_intrusive<trace::Runnable>();
  program->name = name;
  // Results that are cut to their sizes have memory of their own.
  const Sharing sharing = !made_->bounds_.empty() ? Sharing::kNone
                          : share                 ? Sharing::kAll
                                                  : Sharing::kArguments;
  std::string text = end(*program, sharing, made_->bounds_.empty() ? visible : results_.size());
  recorder_.reset();
  uint64_t ops = made_->results_.size();
  for (const auto& [op, times] : made_->ops_) {
    ops = base::hash_combine(base::hash_combine(ops, base::hash_bytes(op)),
                             static_cast<uint64_t>(times));
  }
  std::vector<GraphArgument> arguments;
  for (const CompiledGraph::Input& input : made_->inputs_) {
    arguments.push_back({static_cast<uint64_t>(input.view.dtype), input.view.geometry.sizes});
  }
  const CompilingGraph compiling(name, ops, arguments);
  compile_by_text(*program, current_options_line() + text);
  made_->program_ = std::move(program);
  remember(made_);
  return made_;
}

}  // namespace torch_tpu::dispatch
