#include "csrc/ops/check_kind.h"

#include <stdexcept>

namespace torch_tpu::ops {
namespace {

using Kind = ValueCheck::Kind;
constexpr Kind kKinds[] = {Kind::kIndex, Kind::kValue, Kind::kMatrix, Kind::kBatch};

}  // namespace

const char* check_kind_name(Kind kind) {
  switch (kind) {
    case Kind::kIndex:
      return "index";
    case Kind::kValue:
      return "value";
    case Kind::kMatrix:
      return "matrix";
    case Kind::kBatch:
      return "batch";
  }
  return "value";
}

Kind check_kind(const std::string& name) {
  for (const Kind kind : kKinds) {
    if (name == check_kind_name(kind)) return kind;
  }
  throw std::invalid_argument("no check is called '" + name + "'");
}

}  // namespace torch_tpu::ops
