#include "plan_expr.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace minidynamo {

namespace {

constexpr size_t kMaxDepth = 64;
constexpr double kTwoTo63 = 9223372036854775808.0;
constexpr int64_t kTwoTo53 = int64_t{1} << 53;

int64_t bits_of(double value) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

double float_of(int64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

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

int64_t to_integer(double value) {
  if (!(value >= -kTwoTo63 && value < kTwoTo63)) {
    throw std::domain_error("a float that is no integer's");
  }
  return static_cast<int64_t>(value);
}

int64_t exact_float(int64_t value) {
  if (value > kTwoTo53 || value < -kTwoTo53) {
    throw std::overflow_error("integer overflow in a quotient");
  }
  return bits_of(static_cast<double>(value));
}

double divide(double a, double b) {
  if (b == 0) {
    throw std::domain_error("division by zero");
  }
  return a / b;
}

double checked_log(ExprOp op, double value) {
  if (!(value > 0)) {
    throw std::domain_error("the logarithm of a number that is not positive");
  }
  return op == ExprOp::Log ? std::log(value) : std::log2(value);
}

double float_power(double base, double exponent) {
  if (base < 0 || (base == 0 && exponent < 0)) {
    throw std::domain_error("a power that is no float");
  }
  return std::pow(base, exponent);
}

int64_t apply_unary(ExprOp op, int64_t value) {
  switch (op) {
    case ExprOp::Neg:
      return subtract(0, value);
    case ExprOp::Abs:
      return value < 0 ? subtract(0, value) : value;
    case ExprOp::ToFloat:
      return bits_of(static_cast<double>(value));
    case ExprOp::ToFloatExactly:
      return exact_float(value);
    case ExprOp::FloatNeg:
      return bits_of(-float_of(value));
    case ExprOp::Trunc:
      return to_integer(std::trunc(float_of(value)));
    case ExprOp::Floor:
      return to_integer(std::floor(float_of(value)));
    case ExprOp::Ceil:
      return to_integer(std::ceil(float_of(value)));
    case ExprOp::Round:
      return to_integer(std::nearbyint(float_of(value)));
    case ExprOp::Sqrt:
      if (float_of(value) < 0) {
        throw std::domain_error("the root of a negative number");
      }
      return bits_of(std::sqrt(float_of(value)));
    case ExprOp::Log:
    case ExprOp::Log2:
      return bits_of(checked_log(op, float_of(value)));
    default:
      throw std::logic_error("not a unary operation");
  }
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
    case ExprOp::FloatAdd:
      return bits_of(float_of(a) + float_of(b));
    case ExprOp::FloatSub:
      return bits_of(float_of(a) - float_of(b));
    case ExprOp::FloatMul:
      return bits_of(float_of(a) * float_of(b));
    case ExprOp::FloatDiv:
      return bits_of(divide(float_of(a), float_of(b)));
    case ExprOp::FloatPow:
      return bits_of(float_power(float_of(a), float_of(b)));
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
    Kind kind = sum();
    skip_space();
    if (position_ != text_.size()) {
      fail("unexpected text");
    }
    if (kind == Kind::Float) {
      fail("a float, not an integer,");
    }
    return std::move(code_);
  }

 private:
  enum class Kind { Integer, Float };

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

  // The operation on two values of these kinds; `of_floats` where one is a float.
  Kind emit_binary(Kind left, Kind right, ExprOp of_integers, ExprOp of_floats) {
    if (left == Kind::Integer && right == Kind::Integer) {
      emit(of_integers);
      return Kind::Integer;
    }
    if (left == Kind::Integer) {
      emit(ExprOp::ToFloatBelow);
    } else if (right == Kind::Integer) {
      emit(ExprOp::ToFloat);
    }
    emit(of_floats);
    return Kind::Float;
  }

  void want(Kind kind, Kind wanted, const std::string& function) {
    if (kind != wanted) {
      fail("'" + function + "' takes " + (wanted == Kind::Float ? "floats" : "integers"));
    }
  }

  Kind sum() {
    if (++depth_ > kMaxDepth) {
      fail("too deeply nested");
    }
    Kind kind = product();
    while (true) {
      if (accept("+")) {
        kind = emit_binary(kind, product(), ExprOp::Add, ExprOp::FloatAdd);
      } else if (accept("-")) {
        kind = emit_binary(kind, product(), ExprOp::Sub, ExprOp::FloatSub);
      } else {
        break;
      }
    }
    --depth_;
    return kind;
  }

  Kind product() {
    Kind kind = unary();
    while (true) {
      if (accept("//")) {
        want(kind, Kind::Integer, "//");
        want(unary(), Kind::Integer, "//");
        emit(ExprOp::FloorDiv);
      } else if (accept("*")) {
        kind = emit_binary(kind, unary(), ExprOp::Mul, ExprOp::FloatMul);
      } else if (accept("%")) {
        want(kind, Kind::Integer, "%");
        want(unary(), Kind::Integer, "%");
        emit(ExprOp::Mod);
      } else {
        break;
      }
    }
    return kind;
  }

  Kind unary() {
    if (++depth_ > kMaxDepth) {
      fail("too deeply nested");
    }
    Kind kind;
    if (accept("-")) {
      kind = unary();
      emit(kind == Kind::Integer ? ExprOp::Neg : ExprOp::FloatNeg);
    } else {
      kind = atom();
      if (accept("**")) {
        kind = emit_binary(kind, unary(), ExprOp::Pow, ExprOp::FloatPow);
      }
    }
    --depth_;
    return kind;
  }

  Kind atom() {
    skip_space();
    if (accept("(")) {
      Kind kind = sum();
      if (!accept(")")) {
        fail("missing ')'");
      }
      return kind;
    }
    char first = position_ < text_.size() ? text_[position_] : '\0';
    if (std::isdigit(static_cast<unsigned char>(first))) {
      return number();
    }
    if (std::isalpha(static_cast<unsigned char>(first)) || first == '_') {
      return name();
    }
    fail("expected a number or a name");
  }

  Kind number() {
    const char* begin = text_.data() + position_;
    const char* end = text_.data() + text_.size();
    int64_t value = 0;
    auto [after, error] = std::from_chars(begin, end, value);
    if (after < end && (*after == '.' || *after == 'e')) {
      double real = 0;
      auto [real_end, real_error] = std::from_chars(begin, end, real);
      if (real_error != std::errc()) {
        fail("number too large");
      }
      position_ += real_end - begin;
      emit(ExprOp::Const, bits_of(real));
      return Kind::Float;
    }
    if (error != std::errc()) {
      fail("number too large");
    }
    position_ += after - begin;
    emit(ExprOp::Const, value);
    return Kind::Integer;
  }

  Kind name() {
    size_t begin = position_;
    while (position_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[position_])) || text_[position_] == '_')) {
      ++position_;
    }
    std::string word = text_.substr(begin, position_ - begin);
    if (accept("(")) {
      return call(word);
    }
    auto found = symbols_.find(word);
    if (found == symbols_.end()) {
      fail("unknown symbol '" + word + "'");
    }
    emit(ExprOp::Symbol, found->second);
    return Kind::Integer;
  }

  Kind call(const std::string& function) {
    static const std::unordered_map<std::string, std::pair<ExprOp, Kind>> of_a_float = {
        {"TruncToInt", {ExprOp::Trunc, Kind::Integer}},
        {"FloorToInt", {ExprOp::Floor, Kind::Integer}},
        {"CeilToInt", {ExprOp::Ceil, Kind::Integer}},
        {"RoundToInt", {ExprOp::Round, Kind::Integer}},
        {"OpaqueUnaryFn_sqrt", {ExprOp::Sqrt, Kind::Float}},
        {"OpaqueUnaryFn_log", {ExprOp::Log, Kind::Float}},
        {"OpaqueUnaryFn_log2", {ExprOp::Log2, Kind::Float}},
    };
    auto found = of_a_float.find(function);
    if (found != of_a_float.end()) {
      to_float(sum());
      emit(found->second.first);
      close(function, true);
      return found->second.second;
    }
    if (function == "ToFloat") {
      to_float(sum());
      close(function, true);
      return Kind::Float;
    }
    if (function == "IntTrueDiv" || function == "FloatTrueDiv" || function == "FloatPow") {
      return of_two_floats(function);
    }
    if (function == "Abs") {
      want(sum(), Kind::Integer, function);
      emit(ExprOp::Abs);
      close(function, true);
      return Kind::Integer;
    }
    return of_integers(function);
  }

  void to_float(Kind kind) {
    if (kind == Kind::Integer) {
      emit(ExprOp::ToFloat);
    }
  }

  void close(const std::string& function, bool right_count) {
    if (!accept(")") || !right_count) {
      fail("wrong arguments of '" + function + "'");
    }
  }

  Kind of_two_floats(const std::string& function) {
    bool exact = function == "IntTrueDiv";
    for (int i = 0; i < 2; ++i) {
      Kind kind = sum();
      if (exact) {
        want(kind, Kind::Integer, function);
        emit(ExprOp::ToFloatExactly);
      } else {
        to_float(kind);
      }
      if (i == 0 && !accept(",")) {
        fail("wrong arguments of '" + function + "'");
      }
    }
    emit(function == "FloatPow" ? ExprOp::FloatPow : ExprOp::FloatDiv);
    close(function, true);
    return Kind::Float;
  }

  Kind of_integers(const std::string& function) {
    static const std::unordered_map<std::string, ExprOp> binary = {
        {"FloorDiv", ExprOp::FloorDiv}, {"CleanDiv", ExprOp::FloorDiv}, {"CeilDiv", ExprOp::CeilDiv},
        {"Mod", ExprOp::Mod},           {"PythonMod", ExprOp::Mod},     {"Min", ExprOp::Min},
        {"Max", ExprOp::Max},           {"min", ExprOp::Min},           {"max", ExprOp::Max},
        {"PowByNatural", ExprOp::Pow},
    };
    auto found = binary.find(function);
    bool modular = function == "ModularIndexing";
    if (found == binary.end() && !modular) {
      fail("unknown function '" + function + "'");
    }
    size_t count = 0;
    do {
      want(sum(), Kind::Integer, function);
      if (++count >= 2) {
        emit(modular ? (count == 2 ? ExprOp::FloorDiv : ExprOp::Mod) : found->second);
      }
    } while (accept(","));
    bool variadic =
        !modular && (found->second == ExprOp::Min || found->second == ExprOp::Max);
    close(function, variadic ? count >= 1 : count == (modular ? 3u : 2u));
    return Kind::Integer;
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
    } else if (instruction.op >= ExprOp::Add) {
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
      case ExprOp::ToFloatBelow:
        stack[depth - 2] = apply_unary(ExprOp::ToFloat, stack[depth - 2]);
        break;
      default:
        if (instruction.op < ExprOp::Add) {
          stack[depth - 1] = apply_unary(instruction.op, stack[depth - 1]);
          break;
        }
        --depth;
        stack[depth - 1] = apply(instruction.op, stack[depth - 1], stack[depth]);
    }
  }
  return stack[0];
}

}  // namespace minidynamo
