#include "plan_expr.h"

#include <algorithm>
#include <cctype>
#include <stdexcept>

namespace minidynamo {

namespace {

constexpr size_t kMaxDepth = 64;

int64_t checked(bool overflow, const int64_t& value) {
  if (overflow) {
    throw std::overflow_error("integer overflow");
  }
  return value;
}

int64_t subtract(int64_t a, int64_t b) {
  int64_t result;
  return checked(__builtin_sub_overflow(a, b, &result), result);
}

int64_t multiply(int64_t a, int64_t b) {
  int64_t result;
  return checked(__builtin_mul_overflow(a, b, &result), result);
}

int64_t add(int64_t a, int64_t b) {
  int64_t result;
  return checked(__builtin_add_overflow(a, b, &result), result);
}

int64_t floor_div(int64_t a, int64_t b) {
  if (b == 0) {
    throw std::domain_error("division by zero");
  }
  if (b == -1) {
    return subtract(0, a);
  }
  int64_t quotient = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? quotient - 1 : quotient;
}

int64_t mod(int64_t a, int64_t b) {
  return b == -1 ? 0 : a - floor_div(a, b) * b;
}

int64_t power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    throw std::domain_error("negative exponent");
  }
  if (base >= -1 && base <= 1) {
    return exponent == 0 ? 1 : exponent % 2 == 0 ? base * base : base;
  }
  int64_t result = 1;
  for (; exponent > 0; --exponent) {
    result = multiply(result, base);
  }
  return result;
}

int64_t apply(ExprOp op, int64_t a, int64_t b) {
  switch (op) {
    case ExprOp::Add:
      return add(a, b);
    case ExprOp::Sub:
      return subtract(a, b);
    case ExprOp::Mul:
      return multiply(a, b);
    case ExprOp::FloorDiv:
      return floor_div(a, b);
    case ExprOp::Mod:
      return mod(a, b);
    case ExprOp::CeilDiv:
      return subtract(0, floor_div(a, subtract(0, b)));
    case ExprOp::Pow:
      return power(a, b);
    case ExprOp::Min:
      return a < b ? a : b;
    case ExprOp::Max:
      return a < b ? b : a;
    default:
      throw std::logic_error("not a binary operation");
  }
}

// Recursive descent over:  sum := product (("+"|"-") product)*
//   product := unary (("*"|"//"|"%") unary)*     unary := "-" unary | power
//   power := atom ("**" unary)?                  atom := number | name | name "(" sum,* ")" | "(" sum ")"
class Parser {
 public:
  Parser(const std::string& text, const SymbolIds& symbols) : text_(text), symbols_(symbols) {}

  std::vector<ExprInstruction> parse() {
    sum();
    skip_space();
    if (position_ != text_.size()) {
      fail("unexpected text");
    }
    return std::move(code_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) {
    throw std::invalid_argument(what + " at position " + std::to_string(position_) +
                                " of expression '" + text_ + "'");
  }

  void skip_space() {
    while (position_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[position_]))) {
      ++position_;
    }
  }

  bool accept(const char* token) {
    skip_space();
    size_t length = std::char_traits<char>::length(token);
    if (text_.compare(position_, length, token) != 0) {
      return false;
    }
    position_ += length;
    return true;
  }

  void emit(ExprOp op, int64_t value = 0) { code_.push_back({op, value}); }

  void sum() {
    if (++depth_ > kMaxDepth) {
      fail("too deeply nested");
    }
    product();
    while (true) {
      if (accept("+")) {
        product();
        emit(ExprOp::Add);
      } else if (accept("-")) {
        product();
        emit(ExprOp::Sub);
      } else {
        break;
      }
    }
    --depth_;
  }

  void product() {
    unary();
    while (true) {
      if (accept("//")) {
        unary();
        emit(ExprOp::FloorDiv);
      } else if (accept("*")) {
        unary();
        emit(ExprOp::Mul);
      } else if (accept("%")) {
        unary();
        emit(ExprOp::Mod);
      } else {
        break;
      }
    }
  }

  void unary() {
    if (++depth_ > kMaxDepth) {
      fail("too deeply nested");
    }
    if (accept("-")) {
      unary();
      emit(ExprOp::Neg);
    } else {
      atom();
      if (accept("**")) {
        unary();
        emit(ExprOp::Pow);
      }
    }
    --depth_;
  }

  void atom() {
    skip_space();
    if (accept("(")) {
      sum();
      if (!accept(")")) {
        fail("missing ')'");
      }
      return;
    }
    char first = position_ < text_.size() ? text_[position_] : '\0';
    if (std::isdigit(static_cast<unsigned char>(first))) {
      number();
    } else if (std::isalpha(static_cast<unsigned char>(first)) || first == '_') {
      name();
    } else {
      fail("expected a number or a name");
    }
  }

  void number() {
    int64_t value = 0;
    while (position_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[position_]))) {
      if (__builtin_mul_overflow(value, int64_t{10}, &value) ||
          __builtin_add_overflow(value, int64_t{text_[position_] - '0'}, &value)) {
        fail("number too large");
      }
      ++position_;
    }
    emit(ExprOp::Const, value);
  }

  void name() {
    size_t begin = position_;
    while (position_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[position_])) || text_[position_] == '_')) {
      ++position_;
    }
    std::string word = text_.substr(begin, position_ - begin);
    if (accept("(")) {
      call(word);
      return;
    }
    auto found = symbols_.find(word);
    if (found == symbols_.end()) {
      fail("unknown symbol '" + word + "'");
    }
    emit(ExprOp::Symbol, found->second);
  }

  void call(const std::string& function) {
    static const std::unordered_map<std::string, ExprOp> binary = {
        {"FloorDiv", ExprOp::FloorDiv}, {"CleanDiv", ExprOp::FloorDiv}, {"CeilDiv", ExprOp::CeilDiv},
        {"Mod", ExprOp::Mod},           {"PythonMod", ExprOp::Mod},     {"Min", ExprOp::Min},
        {"Max", ExprOp::Max},           {"min", ExprOp::Min},           {"max", ExprOp::Max},
    };
    auto found = binary.find(function);
    bool modular = function == "ModularIndexing";
    if (found == binary.end() && !modular) {
      fail("unknown function '" + function + "'");
    }
    size_t count = 0;
    do {
      sum();
      if (++count >= 2) {
        emit(modular ? (count == 2 ? ExprOp::FloorDiv : ExprOp::Mod) : found->second);
      }
    } while (accept(","));
    bool variadic =
        !modular && (found->second == ExprOp::Min || found->second == ExprOp::Max);
    bool right_count = variadic ? count >= 1 : count == (modular ? 3u : 2u);
    if (!accept(")") || !right_count) {
      fail("wrong arguments of '" + function + "'");
    }
  }

  const std::string& text_;
  const SymbolIds& symbols_;
  std::vector<ExprInstruction> code_;
  size_t position_ = 0;
  size_t depth_ = 0;
};

// The deepest stack that the code needs; the parser guarantees that it is well formed.
size_t stack_depth(const std::vector<ExprInstruction>& code) {
  size_t depth = 0;
  size_t deepest = 0;
  for (const ExprInstruction& instruction : code) {
    if (instruction.op == ExprOp::Const || instruction.op == ExprOp::Symbol) {
      deepest = std::max(deepest, ++depth);
    } else if (instruction.op != ExprOp::Neg) {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

Expression parse_expression(const std::string& text, const SymbolIds& symbols) {
  Expression expression;
  expression.text = text;
  expression.code = Parser(text, symbols).parse();
  if (stack_depth(expression.code) > kMaxDepth) {
    throw std::invalid_argument("expression too complex: '" + text + "'");
  }
  return expression;
}

int64_t evaluate(const Expression& expression, const int64_t* symbols) {
  int64_t stack[kMaxDepth];
  size_t depth = 0;
  for (const ExprInstruction& instruction : expression.code) {
    switch (instruction.op) {
      case ExprOp::Const:
        stack[depth++] = instruction.value;
        break;
      case ExprOp::Symbol:
        stack[depth++] = symbols[instruction.value];
        break;
      case ExprOp::Neg:
        stack[depth - 1] = apply(ExprOp::Sub, 0, stack[depth - 1]);
        break;
      default:
        --depth;
        stack[depth - 1] = apply(instruction.op, stack[depth - 1], stack[depth]);
    }
  }
  return stack[0];
}

}  // namespace minidynamo
