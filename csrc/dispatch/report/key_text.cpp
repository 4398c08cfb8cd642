#include "csrc/dispatch/report/key_text.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include <ATen/Context.h>

#include "csrc/base/number.h"
#include "csrc/dispatch/call/compiler_options.h"
#include "csrc/dispatch/call/key_words.h"
#include "csrc/ops/table.h"
#include "csrc/stablehlo/type.h"

namespace torch_tpu::dispatch {
namespace {

using Form = trace::TensorArg::Form;

struct Unreadable {};

std::string dtype_text(uint64_t code) {
  if (code >= static_cast<uint64_t>(c10::ScalarType::NumOptions)) throw Unreadable();
  return std::string(c10::getDtypeNames(static_cast<c10::ScalarType>(code)).first);
}

// A number of a key, by its bits and the type beside them.
std::string number_text(uint64_t bits, c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Long:
    case c10::ScalarType::Bool:
      return base::to_string(static_cast<int64_t>(bits));
    case c10::ScalarType::UInt64:
      return base::to_string(bits);
    default:
      return base::to_string(std::bit_cast<double>(bits));
  }
}

std::string form_text(Form form) {
  switch (form) {
    case Form::kNone:
      return "None";
    case Form::kBase:
      return "a tensor";
    case Form::kZeros:
      return "a tensor that was never written";
    case Form::kScalar:
      return "a number from the CPU";
    case Form::kWriteOnly:
      return "a tensor that is only written";
  }
  throw Unreadable();
}

std::string index_text(const std::string& what, size_t i) {
  return what + "[" + std::to_string(i) + "]";
}

class Reader {
 public:
  Reader(const Op& op, std::span<const uint64_t> words) : op_(op), words_(words) {}

  std::vector<Field> read() {
    if (next() != op_.id) throw Unreadable();
    const uint64_t context = next();
    argument_ = "";
    add("float32 matmul precision", precision_text(context & 0xff));
    add("default dtype", dtype_text(context >> 8 & 0xff));
    if (context >> kOptionsShift != 0) {
      add("compiler options", options_text(context >> kOptionsShift));
      next();
      next();
    }
    for (const ArgPlan& plan : op_.args) {
      argument_ = plan.name;
      read_argument(plan);
    }
    argument_ = "";
    if (op_.writes) {
      read_donations();
      if (op_.entry->overlap != ops::Overlap::kFine) read_aliases();
    }
    if (op_.entry->lower == nullptr) add("device", "tpu:" + std::to_string(next()));
    if (at_ != words_.size()) throw Unreadable();
    return std::move(fields_);
  }

 private:
  uint64_t next() {
    if (at_ >= words_.size()) throw Unreadable();
    return words_[at_++];
  }
  int64_t next_int() { return static_cast<int64_t>(next()); }
  // A count that says how many words follow.
  size_t checked(uint64_t count) const {
    if (count > words_.size() - at_) throw Unreadable();
    return count;
  }
  void add(std::string label, std::string value) {
    fields_.push_back({std::move(label), std::move(value), argument_});
  }

  // As the text says them, without what stands before them there.
  static std::string options_text(uint64_t tag) {
    const std::string line = options_line(tag);
    const size_t at = line.find(": ");
    return at == line.npos ? "none" : line.substr(at + 2, line.size() - at - 3);
  }

  static std::string precision_text(uint64_t code) {
    switch (static_cast<at::Float32MatmulPrecision>(code)) {
      case at::Float32MatmulPrecision::HIGHEST:
        return "highest";
      case at::Float32MatmulPrecision::HIGH:
        return "high";
      case at::Float32MatmulPrecision::MEDIUM:
        return "medium";
    }
    throw Unreadable();
  }

  void read_argument(const ArgPlan& plan) {
    switch (plan.kind) {
      case ArgKind::kTensor:
        read_tensor(plan);
        break;
      case ArgKind::kTensorList: {
        const uint64_t count = next();
        add(plan.name + ".length", count == kNoneWord ? "None" : std::to_string(count));
        if (count == kNoneWord) break;
        checked(count);
        for (size_t i = 0; i < count; ++i) {
          argument_ = index_text(plan.name, i);
          read_tensor(plan);
        }
        break;
      }
      case ArgKind::kScalar:
        read_scalar(plan.name);
        break;
      case ArgKind::kScalarList: {
        const uint64_t word = next();
        const bool repeated = (word & 1) != 0;
        add(plan.name + ".length", std::to_string(word >> 1));
        add(plan.name, repeated ? "one number again and again" : "numbers that differ");
        const size_t count = repeated ? 1 : checked(word >> 1);
        for (size_t i = 0; i < count; ++i) read_scalar(index_text(plan.name, i));
        break;
      }
      case ArgKind::kStructural:
        read_structural(plan.name, plan.name == "dtype");
        break;
      case ArgKind::kGenerator:
      case ArgKind::kIgnored:
        break;
    }
  }

  std::string read_shape(size_t rank) {
    std::string text = "(";
    checked(rank);
    for (size_t i = 0; i < rank; ++i) {
      text += (i > 0 ? ", " : "") + std::to_string(next_int());
    }
    return text + ")";
  }

  void read_tensor(const ArgPlan& plan) {
    const std::string label = index_text("input", num_tensors_++);
    const uint64_t word = next();
    if (word == kNoneWord) {
      add(label, "None");
      return;
    }
    const auto form = static_cast<Form>(word & 0xff);
    const uint64_t flags = word >> 32;
    const size_t rank = checked(word >> 16 & 0xffff);
    add(label, form_text(form));
    add(label + ".dtype", dtype_text(word >> 8 & 0xff));
    add(label + ".dim()", std::to_string(rank));
    if (form == Form::kScalar) {
      add_flags(label, flags);
      return;
    }
    for (size_t i = 0; i < rank; ++i) {
      add(label + index_text(".shape", i), std::to_string(next_int()));
    }
    add_flags(label, flags);
    add(label + ".stride()", (flags & kStrided) != 0 ? read_shape(rank) : "contiguous");
    if (form == Form::kBase) {
      const bool view = (flags & kViewOfBase) != 0;
      add(label + ".view", view ? "yes" : "no");
      if (!view) return;
      read_place(label);
      const uint64_t base = next();
      add(label + ".base.dtype",
          std::string(stablehlo::dtype_name(static_cast<stablehlo::DType>(base >> 8))));
      add(label + ".base.shape", read_shape(base & 0xff));
      add(label + ".base.stride()", read_shape(base & 0xff));
      if (plan.written) read_shared_write(label);
    } else {
      const bool partial = (flags & kPartialWrite) != 0;
      add(label + ".view", partial ? "yes" : "no");
      if (!partial) return;
      read_place(label);
      add(label + ".storage bytes", std::to_string(next_int()));
      read_shared_write(label);
    }
  }

  void read_place(const std::string& label) {
    const uint64_t place = next();
    if (place == kFixedPlace) {
      add(label + ".storage_offset()", std::to_string(next_int()));
      return;
    }
    std::string dims;
    for (size_t d = 0; d < kMaxStarts; ++d) {
      if ((place >> d & 1) != 0) dims += (dims.empty() ? "" : ", ") + std::to_string(d);
    }
    add(label + ".view begins", dims.empty() ? "at the start" : "further on along dim " + dims);
    add(label + ".view is", (place & kGathered) != 0 ? "scattered" : "a block");
  }

  void add_flags(const std::string& label, uint64_t flags) {
    add(label + ".number", (flags & kWrapped) != 0 ? "a Python number" : "a tensor");
    add(label + ".is_conj()", (flags & kConj) != 0 ? "True" : "False");
    add(label + ".is_neg()", (flags & kNeg) != 0 ? "True" : "False");
    if ((flags & kLargeScalar) != 0) add(label + ".value", "more than a float32 holds");
  }

  void read_shared_write(const std::string& label) {
    const uint64_t other = next();
    add(label + ".storage",
        other == kNoneWord ? "its own" : "that of " + index_text("input", other));
  }

  static std::string range_text(uint64_t range) {
    static constexpr const char* kNames[] = {"",  "NaN",    "below 0", "0", "between 0 and 1",
                                             "1", "above 1"};
    return range < std::size(kNames) ? kNames[range] : "?";
  }

  void read_scalar(const std::string& label) {
    const uint64_t word = next();
    if (word == kNoneWord) {
      add(label, "None");
      return;
    }
    const uint64_t type = word >> 8 & 0xff;
    add(label, (word & 0xff) == 1 ? number_text(next(), static_cast<c10::ScalarType>(type))
                                  : "any number");
    add(label + " (type)", dtype_text(type));
    add(label + " (size)", (word & kLargeNumber) != 0 ? "more than a float32 holds" : "small");
    if (word >> 32 != 0) add(label + " (range)", range_text(word >> 32));
  }

  void read_structural(const std::string& label, bool is_dtype = false) {
    const uint64_t word = next();
    if (word == kNoneWord) {
      add(label, "None");
      return;
    }
    switch (word & 0xff) {
      case 1: {
        const int64_t value = next_int();
        add(label, is_dtype ? dtype_text(static_cast<uint64_t>(value)) : std::to_string(value));
        return;
      }
      case 2:
        add(label, "False");
        return;
      case 3:
        add(label, "True");
        return;
      case 4: {
        const size_t count = checked(word >> 8);
        add(label + ".length", std::to_string(count));
        for (size_t i = 0; i < count; ++i) add(index_text(label, i), std::to_string(next_int()));
        return;
      }
      case 5:
        add(label, number_text(next(), c10::ScalarType::Double));
        return;
      case 6: {
        const uint64_t length = next();
        std::string text(checked((length + 7) / 8) * 8, '\0');
        for (size_t i = 0; i < text.size(); i += 8) {
          const uint64_t part = next();
          std::memcpy(text.data() + i, &part, 8);
        }
        text.resize(length);
        add(label, "'" + text + "'");
        return;
      }
      case 7:
        add(label, "a device");
        return;
      case 8: {
        const size_t count = checked(word >> 8);
        add(label + ".length", std::to_string(count));
        for (size_t i = 0; i < count; ++i) read_structural(index_text(label, i));
        return;
      }
      default:
        throw Unreadable();
    }
  }

  void read_donations() {
    for (size_t first = 0; first <= num_tensors_; first += 64) {
      const uint64_t mask = next();
      for (size_t i = first; i < std::min(first + 64, num_tensors_); ++i) {
        add(index_text("input", i) + ".donated", (mask >> (i - first) & 1) != 0 ? "yes" : "no");
      }
    }
  }

  void read_aliases() {
    const size_t end = words_.size() - (op_.entry->lower == nullptr ? 1 : 0);
    static constexpr const char* kNames[] = {"they are the same", "some of it", "none", "perhaps"};
    while (at_ + 2 <= end) {
      const uint64_t pair = next();
      const uint64_t status = next();
      add("overlap of input[" + std::to_string(pair >> 32) + "] and input[" +
              std::to_string(pair & 0xffffffff) + "]",
          status < std::size(kNames) ? kNames[status] : "?");
    }
  }

  const Op& op_;
  std::span<const uint64_t> words_;
  size_t at_ = 0;
  size_t num_tensors_ = 0;
  std::string argument_;
  std::vector<Field> fields_;
};

using Labels = std::unordered_map<std::string_view, const Field*>;

Labels by_label(const std::vector<Field>& fields) {
  Labels out;
  for (const Field& field : fields) out.emplace(field.label, &field);
  return out;
}

const Field* find(const Labels& labels, const std::string& label) {
  const auto it = labels.find(label);
  return it == labels.end() ? nullptr : it->second;
}

// "input[0]" of "input[0].donated".
std::optional<std::string> owner(const std::string& label, std::string_view suffix) {
  if (!label.ends_with(suffix)) return std::nullopt;
  return label.substr(0, label.size() - suffix.size());
}

}  // namespace

std::vector<Field> key_fields(const Op& op, std::span<const uint64_t> words) {
  try {
    return Reader(op, words).read();
  } catch (const Unreadable&) {
    return {};
  }
}

std::optional<Difference> first_difference(const std::vector<Field>& before,
                                           const std::vector<Field>& after) {
  std::optional<Difference> first;
  const auto note = [&](const Field& field, const std::string& was, const std::string& is) {
    if (first) {
      ++first->others;
    } else {
      first = Difference{field.label, field.argument, was, is};
    }
  };
  const Labels olds = by_label(before);
  const Labels news = by_label(after);
  // A list has fields for its length and elements, None in its place has one.
  const auto note_new = [&](const Field& field) {
    const auto list = owner(field.label, ".length");
    if (list && find(olds, *list) != nullptr) {
      note({*list, {}, field.argument}, "None", "given");
    } else if (field.value == "None" && find(olds, field.label + ".length") != nullptr) {
      note(field, "given", "None");
    } else {
      note(field, "absent", field.value);
    }
  };
  for (const Field& field : after) {
    const Field* old = find(olds, field.label);
    if (old == nullptr) {
      note_new(field);
    } else if (old->value != field.value) {
      note(field, old->value, field.value);
    }
  }
  for (const Field& field : before) {
    if (find(news, field.label) == nullptr) note(field, field.value, "absent");
  }
  return first;
}

std::string Difference::text() const {
  const std::string change = before + " → " + after;
  if (const auto input = owner(label, ".donated")) {
    return *input + (after == "yes" ? ": donated memory" : ": memory that is no longer donated");
  }
  if (const auto input = owner(label, ".view")) {
    return *input + (after == "yes" ? ": now a view" : ": no longer a view");
  }
  if (const auto input = owner(label, ".storage_offset()")) {
    return *input + ": a view with another offset (" + change + ")";
  }
  return label + ": " + change;
}

}  // namespace torch_tpu::dispatch
