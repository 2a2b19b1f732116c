// Numbers by name: what shapes and rules in tables are written in ("Hq*hd", "64", "vocab_multiple*tp").
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/core.h"

namespace refit::model {

using Symbols = std::map<std::string, std::int64_t, std::less<>>;

std::vector<std::string_view> split(std::string_view text, char separator);

// Sum of products of symbols and integers, e.g. "Hq*dn+Hq*dr". "a/b" must divide; "sum:b" is the number of blocks of b
// that hold the sum, the last perhaps short. Errors: kInvalid on overflow and when a division leaves a rest; an unknown
// symbol is a mistake in a table.
Result<std::int64_t> evaluate_term(std::string_view term, const Symbols& symbols);
// Terms separated by commas.
Result<Dims> evaluate_terms(std::string_view terms, const Symbols& symbols);

// A text that lives as long as the program: tables view theirs.
std::string_view kept(std::string text);

// The name of a value transform as a rule writes it, its symbol as a number: "over_sqrt:hd" -> "over_sqrt:128".
Result<std::string_view> value_of(std::string_view term, const Symbols& symbols);

// Decimal digits only, no sign or leading zero, within int64.
std::optional<std::int64_t> parse_number(std::string_view text);

}  // namespace refit::model
