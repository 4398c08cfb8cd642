// Attribute structs and enums of the StableHLO ops that need more than a few integers.
#pragma once

#include <complex>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/stablehlo/value.h"

namespace torch_tpu::stablehlo {

enum class Compare : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe };

// The body of a region: gets the block arguments, returns what the region returns.
using Region = std::function<Values(const Values&)>;

// The common reduction bodies; kAnd/kOr are bitwise (logical on bool).
enum class Reduction : uint8_t { kAdd, kMul, kMax, kMin, kAnd, kOr, kXor };

struct DotDims {
  Dims lhs_batch, rhs_batch;
  Dims lhs_contracting, rhs_contracting;
};

enum class Precision : uint8_t { kDefault, kHigh, kHighest };

struct Window {  // one entry per dimension (reduce_window) or per spatial dimension (convolution)
  Dims sizes;    // not used by convolution
  Dims strides;
  Dims padding_low, padding_high;
  Dims base_dilation;          // lhs dilation; empty = all 1
  Dims window_dilation;        // rhs dilation; empty = all 1
  std::vector<bool> reversal;  // convolution only; empty = all false
};

// Dimension numbers. Example for NCHW x OIHW -> NCHW:
//   input_batch 0, input_feature 1, input_spatial {2,3}; kernel_output_feature 0,
//   kernel_input_feature 1, kernel_spatial {2,3}; output_batch 0, output_feature 1, {2,3}.
struct ConvDims {
  int64_t input_batch = 0, input_feature = 1;
  Dims input_spatial;
  int64_t kernel_output_feature = 0, kernel_input_feature = 1;
  Dims kernel_spatial;
  int64_t output_batch = 0, output_feature = 1;
  Dims output_spatial;
};

struct GatherDims {
  Dims offset_dims;
  Dims collapsed_slice_dims;
  Dims operand_batching_dims;
  Dims start_indices_batching_dims;
  Dims start_index_map;
  int64_t index_vector_dim = 0;
};

struct ScatterDims {
  Dims update_window_dims;
  Dims inserted_window_dims;
  Dims input_batching_dims;
  Dims scatter_indices_batching_dims;
  Dims scatter_dims_to_operand_dims;
  int64_t index_vector_dim = 0;
};

enum class FftType : uint8_t { kFft, kIfft, kRfft, kIrfft };
enum class RngAlgorithm : uint8_t { kDefault, kThreeFry, kPhilox };

struct CollectiveGroups {
  std::vector<std::vector<int64_t>> replica_groups;
  std::optional<int64_t> channel_id;  // channel handle type 1 is implied
  bool use_global_device_ids = false;
};

struct CustomCall {
  std::string target;
  std::string backend_config;       // string form, escaped by the printer
  std::string backend_config_dict;  // MLIR dictionary text ("{a = 1 : i64}"), used when not empty
  int api_version = 2;              // 4 = typed FFI
  bool has_side_effect = false;
  std::vector<Dims> operand_layouts, result_layouts;  // minor-to-major; empty = unspecified
  std::vector<std::pair<int64_t, int64_t>> output_operand_aliases;  // (output, operand)
};

}  // namespace torch_tpu::stablehlo
