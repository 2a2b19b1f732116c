#include "model/rules/symbols.h"

#include <charconv>
#include <mutex>
#include <set>

namespace refit::model {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  for (;;) {
    const std::size_t at = text.find(separator);
    out.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return out;
    text.remove_prefix(at + 1);
  }
}

std::optional<std::int64_t> parse_number(std::string_view text) {
  if (text.empty() || (text.size() > 1 && text[0] == '0') || text[0] < '0' || text[0] > '9') return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

namespace {

Result<std::int64_t> evaluate_name(std::string_view name, const Symbols& symbols) {
  if (const auto number = parse_number(name)) return *number;
  const auto found = symbols.find(name);
  if (found == symbols.end())
    return Error(Code::kInternal, "rule table names an unknown size '" + std::string(name) + "'");
  return found->second;
}

// A name or number, or one divided by others.
Result<std::int64_t> evaluate_factor(std::string_view factor, const Symbols& symbols) {
  const auto parts = split(factor, '/');
  REFIT_ASSIGN(std::int64_t value, evaluate_name(parts[0], symbols));
  for (std::size_t i = 1; i < parts.size(); ++i) {
    REFIT_ASSIGN(const std::int64_t divisor, evaluate_name(parts[i], symbols));
    if (divisor < 1 || value % divisor != 0)
      return Error(Code::kInvalid, "size " + std::string(factor) + ": " + std::to_string(value) +
                                       " does not divide by " + std::to_string(divisor));
    value /= divisor;
  }
  return value;
}

Result<std::int64_t> evaluate_product(std::string_view term, const Symbols& symbols) {
  std::int64_t product = 1;
  for (std::string_view part : split(term, '*')) {
    REFIT_ASSIGN(const std::int64_t value, evaluate_factor(part, symbols));
    const auto next = checked_mul(product, value);
    if (!next) return Error(Code::kInvalid, "size " + std::string(term) + " passes 2^63");
    product = *next;
  }
  return product;
}

}  // namespace

Result<std::int64_t> evaluate_term(std::string_view term, const Symbols& symbols) {
  std::int64_t sum = 0;
  const auto sides = split(term, ':');
  for (std::string_view part : split(sides[0], '+')) {
    REFIT_ASSIGN(const std::int64_t product, evaluate_product(part, symbols));
    const auto next = checked_add(sum, product);
    if (!next) return Error(Code::kInvalid, "size " + std::string(term) + " passes 2^63");
    sum = *next;
  }
  if (sides.size() == 1) return sum;
  REFIT_ASSIGN(const std::int64_t block, evaluate_factor(sides[1], symbols));
  if (block < 1) return Error(Code::kInvalid, "size " + std::string(term) + " has blocks of nothing");
  return ceil_div(sum, block);
}

Result<Dims> evaluate_terms(std::string_view terms, const Symbols& symbols) {
  Dims out;
  for (std::string_view term : split(terms, ',')) {
    REFIT_ASSIGN(out.emplace_back(), evaluate_term(term, symbols));
  }
  return out;
}

std::string_view kept(std::string text) {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> texts;
  const std::lock_guard lock(mutex);
  return *texts.insert(std::move(text)).first;
}

Result<std::string_view> value_of(std::string_view term, const Symbols& symbols) {
  const auto parts = split(term, ':');
  if (parts.size() == 1) return term;
  REFIT_ASSIGN(const std::int64_t number, evaluate_term(parts[1], symbols));
  return kept(std::string(parts[0]) + ":" + std::to_string(number));
}

}  // namespace refit::model
