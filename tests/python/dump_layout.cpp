// Prints rule_layout(CONFIG, SPEC) expanded for every rank as JSON, for checks by code that does not use the rules.
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "model/model.h"

int main(int argc, char** argv) {
  using namespace refit;
  using nlohmann::json;
  if (argc != 3) return 2;
  std::ifstream file(argv[1]);
  const std::string config{std::istreambuf_iterator<char>(file), {}};
  const auto layout = model::rule_layout(config, argv[2]);
  if (!layout.ok()) {
    std::cerr << layout.error().to_string() << "\n";
    return 1;
  }
  json out{{"tensors", json::object()}, {"ranks", json::array()}};
  const auto& tensors = (*layout)->catalogue().tensors;
  for (const auto& t : tensors) out["tensors"][t.name] = t.shape;
  for (std::uint32_t r = 0; r < (*layout)->world(); ++r) {
    const auto rank = (*layout)->expand(Rank{r});
    json holdings = json::array(), parameters = json::object();
    for (const auto& h : rank->holdings) {
      json box = json::array();
      for (const Interval& i : h.box) box.push_back({i.lo, i.hi});
      holdings.push_back({{"tensor", tensors[h.tensor.value].name},
                          {"view", h.view.radices.get()},
                          {"box", box},
                          {"offset", h.offset},
                          {"strides", h.strides}});
    }
    for (const auto& p : rank->parameters) parameters[p.name] = {{"shape", p.shape}, {"offset", p.offset}};
    out["ranks"].push_back({{"bytes", rank->buffers[0].bytes}, {"holdings", holdings}, {"parameters", parameters}});
  }
  std::cout << out.dump() << "\n";
  return 0;
}
