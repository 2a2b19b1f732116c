// Helpers of the model tests: small configurations, memory filled through holdings, rows read back as words.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/model_layout.h"

namespace refit::model::test {

inline void PrintFailure(const Error& e) { ADD_FAILURE() << e.to_string(); }

struct Sizes {
  std::string type = "llama";
  std::int64_t hidden = 8, layers = 1, heads = 4, kv_heads = 2, head_dim = 2, width = 8, vocabulary = 130;
  bool tied = false;
  std::int64_t experts = 0, expert_width = 0;
  std::string more = {};  // further keys, each with a leading comma
};

inline std::string config(const Sizes& s) {
  std::string out =
      "{\"model_type\":\"" + s.type + "\",\"hidden_size\":" + std::to_string(s.hidden) +
      ",\"num_hidden_layers\":" + std::to_string(s.layers) + ",\"num_attention_heads\":" + std::to_string(s.heads) +
      ",\"num_key_value_heads\":" + std::to_string(s.kv_heads) + ",\"head_dim\":" + std::to_string(s.head_dim) +
      ",\"intermediate_size\":" + std::to_string(s.width) + ",\"vocab_size\":" + std::to_string(s.vocabulary) +
      ",\"tie_word_embeddings\":" + (s.tied ? "true" : "false");
  if (s.experts > 0)
    out += ",\"num_experts\":" + std::to_string(s.experts) +
           ",\"moe_intermediate_size\":" + std::to_string(s.expert_width);
  return out + s.more + "}";
}

inline std::shared_ptr<const Layout> must(const std::string& config_json, const std::string& spec,
                                          const Catalogue* names = nullptr) {
  auto made = rule_layout(config_json, spec, names);
  if (!made.ok()) {
    PrintFailure(made.error());
    return nullptr;
  }
  return *made;
}

// As must(), of a family that need not stand in families().
inline std::shared_ptr<const Layout> must_with(const Family& family, const std::string& config_json,
                                               const std::string& spec) {
  const Family* known[] = {&family};
  auto read = read_config(config_json, nullptr, known);
  auto parsed = parse_spec(spec);
  if (!read.ok() || !parsed.ok()) {
    PrintFailure(!read.ok() ? read.error() : parsed.error());
    return nullptr;
  }
  auto made = make_layout(std::move(*read), std::move(*parsed), {});
  if (!made.ok()) PrintFailure(made.error());
  return made.ok() ? *made : nullptr;
}

inline RankLayout rank_of(const Layout& layout, std::uint32_t rank) {
  auto made = layout.expand(Rank{rank});
  if (!made.ok()) PrintFailure(made.error());
  return made.ok() ? std::move(*made) : RankLayout{};
}

inline std::int64_t id_of(const Catalogue& catalogue, const std::string& name) {
  const auto at = std::lower_bound(catalogue.tensors.begin(), catalogue.tensors.end(), name,
                                   [](const LogicalTensor& t, const std::string& n) { return t.name < n; });
  return at != catalogue.tensors.end() && at->name == name ? at - catalogue.tensors.begin() : -1;
}

// Calls visit(logical linear index, byte offset) for every element of a holding.
template <typename Visit>
void each_element(const Holding& h, const Dims& shape, Visit visit) {
  const std::vector<int> axis_of = h.view.axis_of();
  const Dims steps = h.view.steps();
  Dims axis_stride(shape.size(), 1);
  for (std::size_t a = shape.size(); a-- > 1;) axis_stride[a - 1] = axis_stride[a] * shape[a];
  if (empty(h.box)) return;
  Dims at(h.box.size(), 0);
  for (;;) {
    std::int64_t logical = 0, offset = h.offset;
    for (std::size_t f = 0; f < at.size(); ++f) {
      logical += (h.box[f].lo + at[f]) * steps[f] * axis_stride[static_cast<std::size_t>(axis_of[f])];
      offset += at[f] * h.strides[f];
    }
    visit(logical, offset);
    std::size_t f = at.size();
    while (f > 0 && ++at[f - 1] == h.box[f - 1].size()) at[--f] = 0;
    if (f == 0) return;
  }
}

// One parameter of one rank as "name[logical index]" of each element; "." where no holding lies.
inline std::vector<std::string> contents(const Layout& layout, std::uint32_t rank, const std::string& parameter) {
  const RankLayout r = rank_of(layout, rank);
  const auto p =
      std::find_if(r.parameters.begin(), r.parameters.end(), [&](const Parameter& x) { return x.name == parameter; });
  if (p == r.parameters.end()) {
    ADD_FAILURE() << "rank " << rank << " has no parameter " << parameter;
    return {};
  }
  const std::int64_t item = item_size(p->dtype), count = elements(whole(p->shape));
  std::vector<std::string> out(static_cast<std::size_t>(count), ".");
  for (const Holding& h : r.holdings) {
    const LogicalTensor& t = layout.catalogue().tensors[h.tensor.value];
    each_element(h, t.shape, [&](std::int64_t logical, std::int64_t offset) {
      if (offset < p->offset || offset >= p->offset + count * item) return;
      std::string& place = out[static_cast<std::size_t>((offset - p->offset) / item)];
      EXPECT_EQ(place, ".") << "two elements in one place of " << parameter;
      place = t.name + "[" + std::to_string(logical) + "]";
    });
  }
  return out;
}

// The rows of a parameter in short form: "q3" for row 3 of q_proj, "-" for a row without holdings. Checks that a row is
// one whole row of one tensor.
inline std::string rows(const Layout& layout, std::uint32_t rank, const std::string& parameter) {
  static const std::map<std::string, std::string> kShort{{"q_proj", "q"},    {"k_proj", "k"},  {"v_proj", "v"},
                                                         {"gate_proj", "g"}, {"up_proj", "u"}, {"embed_tokens", "w"}};
  const RankLayout r = rank_of(layout, rank);
  const auto p =
      std::find_if(r.parameters.begin(), r.parameters.end(), [&](const Parameter& x) { return x.name == parameter; });
  if (p == r.parameters.end()) return "no parameter";
  const std::int64_t width = p->shape.back();
  const std::vector<std::string> all = contents(layout, rank, parameter);
  std::string out;
  for (std::size_t i = 0; i < all.size(); i += static_cast<std::size_t>(width)) {
    std::string word = "-";
    if (all[i] != ".") {
      const std::size_t open = all[i].find('[');
      const std::int64_t first = std::stoll(all[i].substr(open + 1));
      const std::string name = all[i].substr(0, open);
      EXPECT_EQ(first % width, 0);
      for (std::int64_t c = 0; c < width; ++c)
        EXPECT_EQ(all[i + static_cast<std::size_t>(c)], name + "[" + std::to_string(first + c) + "]");
      for (const auto& [full, brief] : kShort)
        if (name.find(full) != std::string::npos) word = brief;
      word += std::to_string(first / width);
    }
    out += (out.empty() ? "" : " ") + word;
  }
  return out;
}

inline Dims shape_of(const Layout& layout, std::uint32_t rank, const std::string& parameter) {
  for (const Parameter& p : rank_of(layout, rank).parameters)
    if (p.name == parameter) return p.shape;
  ADD_FAILURE() << "rank " << rank << " has no parameter " << parameter;
  return {};
}

// "q3 k0 …": tensors by the first matching part of their names, and their rows.
using Short = std::vector<std::pair<std::string, std::string>>;
inline std::string words(const Layout& layout, std::uint32_t rank, const std::string& parameter, const Short& names) {
  const Dims shape = shape_of(layout, rank, parameter);
  std::int64_t width = 1;
  for (std::size_t a = 1; a < shape.size(); ++a) width *= shape[a];
  const auto all = contents(layout, rank, parameter);
  std::string out;
  for (std::size_t i = 0; i < all.size(); i += static_cast<std::size_t>(width)) {
    std::string word = "-";
    if (all[i] != ".") {
      const std::size_t open = all[i].find('[');
      for (const auto& [part, brief] : names)
        if (word == "-" && all[i].substr(0, open).find(part) != std::string::npos) word = brief;
      word += std::to_string(std::stoll(all[i].substr(open + 1)) / width);
    }
    out += (out.empty() ? "" : " ") + word;
  }
  return out;
}

inline std::string refusal(const std::string& config_json, const std::string& spec, const Catalogue* names = nullptr) {
  const auto made = rule_layout(config_json, spec, names);
  return made.ok() ? "accepted" : made.error().to_string();
}

}  // namespace refit::model::test
