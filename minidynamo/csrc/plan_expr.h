// Integer expressions over a plan's symbols: parsed once to postfix code, evaluated at each call.
// Floats may be in between (`TruncToInt(1.5*ToFloat(s0))`); each value's kind is known when parsed.
#ifndef MINIDYNAMO_PLAN_EXPR_H
#define MINIDYNAMO_PLAN_EXPR_H

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace minidynamo {

enum class ExprOp : uint8_t {
  Const, Symbol,                                         // push a value
  Neg, Abs, ToFloat, ToFloatExactly, ToFloatBelow,       // of an integer: the top, the one below
  FloatNeg, Trunc, Floor, Ceil, Round, Sqrt, Log, Log2,  // of a float
  Add, Sub, Mul, FloorDiv, Mod, CeilDiv, Pow, Min, Max,  // of two integers
  FloatAdd, FloatSub, FloatMul, FloatDiv, FloatPow,      // of two floats
};

struct ExprInstruction {
  ExprOp op;
  int64_t value;  // the constant (a float's bits), or the index of the symbol
};

struct Expression {
  std::string text;
  std::vector<ExprInstruction> code;  // postfix
  bool late = false;                  // reads a symbol that a step defines
};

using SymbolIds = std::unordered_map<std::string, int64_t>;

// Parses what str() of a sympy integer expression gives: + - * // % **, parentheses, Abs, Min, Max,
// Mod, PythonMod, FloorDiv, CleanDiv, CeilDiv, PowByNatural, ModularIndexing; of floats, whose
// constants are written as Python's repr does, also ToFloat, IntTrueDiv, FloatTrueDiv, FloatPow,
// OpaqueUnaryFn_sqrt, OpaqueUnaryFn_log, OpaqueUnaryFn_log2 and TruncToInt, FloorToInt, CeilToInt, RoundToInt. Throws std::invalid_argument.
Expression parse_expression(const std::string& text, const SymbolIds& symbols);

// Python's semantics (floor division, sign of the divisor, rounding to even). Throws
// std::overflow_error when an integer leaves 64 bits and std::domain_error on division by zero and
// for floats that are no integer's.
int64_t evaluate(const Expression& expression, const int64_t* symbols);

}  // namespace minidynamo

#endif
