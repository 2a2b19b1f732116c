#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "model/recipe.h"

namespace refit::model {
namespace {
using nlohmann::json;

// Accepts anything well-formed except an object with two equal keys.
class DuplicateFinder : public json::json_sax_t {
 public:
  std::string problem;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return true;
  }
  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    problem = "key '" + name.substr(0, 200) + "' appears twice";
    return false;
  }
  bool end_object() override {
    keys_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    problem = "not valid JSON at byte " + std::to_string(position);
    return false;
  }

 private:
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

Status check_json(std::string_view text) {
  DuplicateFinder finder;
  if (!json::sax_parse(text, &finder)) return Error(Code::kInvalid, finder.problem);
  return {};
}

}  // namespace refit::model
