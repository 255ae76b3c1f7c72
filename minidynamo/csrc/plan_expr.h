// Integer expressions over a plan's symbols: parsed once to postfix code, evaluated at each call.
#ifndef MINIDYNAMO_PLAN_EXPR_H
#define MINIDYNAMO_PLAN_EXPR_H

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace minidynamo {

enum class ExprOp : uint8_t { Const, Symbol, Add, Sub, Mul, FloorDiv, Mod, CeilDiv, Pow, Min, Max, Neg };

struct ExprInstruction {
  ExprOp op;
  int64_t value;  // the constant, or the index of the symbol
};

struct Expression {
  std::string text;
  std::vector<ExprInstruction> code;  // postfix
  bool late = false;                  // reads a symbol that a step defines
};

using SymbolIds = std::unordered_map<std::string, int64_t>;

// Parses what str() of a sympy integer expression gives: + - * // % **, parentheses, Min, Max, Mod,
// PythonMod, FloorDiv, CleanDiv, CeilDiv, ModularIndexing. Throws std::invalid_argument.
Expression parse_expression(const std::string& text, const SymbolIds& symbols);

// Python's integer semantics (floor division, sign of the divisor). Throws std::overflow_error when
// a value leaves 64 bits and std::domain_error on division by zero.
int64_t evaluate(const Expression& expression, const int64_t* symbols);

}  // namespace minidynamo

#endif
