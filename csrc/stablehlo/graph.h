// The instructions behind a Builder: blocks of instructions over numbered values. Internal to
// csrc/stablehlo; the Builder's methods append here and the Printer reads it.
#pragma once

#include <deque>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "csrc/stablehlo/annotate.h"
#include "csrc/stablehlo/attributes.h"

namespace torch_tpu::stablehlo {

enum class Form : uint8_t {
  kGeneric,     // "name"(%a, %b) <{attributes}> ({regions}) : (A, B) -> C
  kSameType,    // name %a, %b : T
  kFunctional,  // name %a, %b<attributes> : (A, B) -> C
  kConstant,    // stablehlo.constant <attributes> : T
  kAlias,       // not printed: the operand itself, of which other elements are said to count
};

struct Instruction {
  std::string_view name;  // a string literal
  Form form = Form::kGeneric;
  bool side_effect = false;
  int32_t block = 0;
  int32_t first_result = 0;
  int32_t num_results = 0;
  std::vector<int32_t> operands;
  std::vector<int32_t> regions;  // indices into blocks
  std::string attributes;        // MLIR text
  std::string annotation;        // further attributes of kGeneric, which are no part of the op
  Label label;                   // may be null
};

struct Block {
  std::vector<int32_t> arguments;
  std::vector<int32_t> instructions;
  std::vector<int32_t> results;
  int32_t parent = -1;  // the instruction that holds this region; -1 for @main
  // XLA has no captures in the bodies of reduce, sort, scatter...; constants are copied inside.
  bool isolated = false;
};

class Graph {
 public:
  explicit Graph(Builder* owner);

  Value value(int32_t id) const { return Value(owner_, id); }
  Value add_argument(int32_t block, const Type& type);

  // Appends to the innermost open block. `name` must be a string literal.
  Values emit(std::string_view name, const Values& operands, const std::vector<Type>& results,
              std::string attributes = {}, Form form = Form::kGeneric,
              std::vector<int32_t> regions = {});
  Value emit1(std::string_view name, const Values& operands, const Type& result,
              std::string attributes = {}, Form form = Form::kGeneric,
              std::vector<int32_t> regions = {});

  // Runs `body` in a new block with arguments of the given types; `op` is for messages.
  int32_t region(std::string_view op, const std::vector<Type>& arguments, const Region& body,
                 bool isolated);
  std::vector<Type> result_types(int32_t block) const;

  // Throws unless x is a value of this graph.
  void check(std::string_view op, const Value& x) const;

  Builder* owner_;
  std::deque<Type> types;  // by value; a deque, because callers hold references across appends
  std::vector<int32_t> definition;   // by value: the instruction, or -1 for a block argument
  std::vector<int32_t> value_block;  // by value
  std::vector<Instruction> instructions;
  std::deque<Block> blocks;   // 0 is @main
  std::vector<int32_t> open;  // the open blocks, outermost first
  std::vector<int32_t> side_effects;
  std::unordered_map<int32_t, int64_t> scalar_ints;  // integer constants of rank 0

 private:
  int32_t use(std::string_view op, const Value& x);
  int32_t new_value(const Type& type, int32_t instruction, int32_t block);
};

// --- messages and attribute text ----------------------------------------------------------------
std::string_view short_name(std::string_view name);  // stablehlo.add -> add
[[noreturn]] void fail(std::string_view op, std::string_view expected, std::string_view got);
[[noreturn]] void fail(std::string_view op, std::string_view expected, const Type& got);
void check_type(std::string_view op, const Type& type);  // throws for negative dimensions
void check_static(std::string_view op, const Value& x);  // throws where a dimension varies
void check_scalar(std::string_view op, const Value& x, DType dtype);
// Throws unless `dims` are distinct dimensions of a type with this rank.
void check_dims(std::string_view op, const Dims& dims, int64_t rank);
void check_dim(std::string_view op, int64_t dim, int64_t rank);
void check_index(std::string_view op, std::string_view what, int64_t index, int64_t count);
void check_count(std::string_view op, std::string_view what, size_t expected, size_t got);

std::string list_text(const Dims& values);                           // [1, 2]
std::string array_attribute(const Dims& values);                     // array<i64: 1, 2>
std::string pairs_attribute(const Dims& first, const Dims& second);  // dense<[[1, 2]]> : ...
std::string quoted(std::string_view text);                           // "..." with escapes
std::string int_attribute(int64_t value);                            // 1 : i64

// --- types --------------------------------------------------------------------------------------
int32_t axis_of(const Type& type, int64_t dim);  // or kWhole
Axes axes_of(const Type& type);                  // an entry per dimension
// A type whose axes are dropped where nothing varies.
Type make_type(DType dtype, Dims dims, Axes axes);
Type with_dtype(const Type& type, DType dtype);
std::vector<Type> types_of(const Values& xs);
std::string types_text(const std::vector<Type>& types);

}  // namespace torch_tpu::stablehlo
