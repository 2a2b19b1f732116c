#include "model/sides/pipeline.h"

#include <algorithm>
#include <numeric>

#include "model/rules/symbols.h"

namespace refit::model {
namespace {

constexpr std::size_t kMostLetters = 1 << 16;  // of a layout written out

Error bad_pipeline(std::string_view text, const std::string& what) {
  return Error(Code::kInvalid, "layout='" + std::string(text) + "': " + what);
}

bool is_letter(char c) { return c == 'E' || c == 't' || c == 'm' || c == 'L'; }

// "*N" at `at`, where it must or may stand; 1 without it.
Result<std::int64_t> read_times(std::string_view text, std::size_t& at) {
  if (at == text.size() || text[at] != '*') return 1;
  std::size_t end = ++at;
  while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
  const auto number = parse_number(text.substr(at, end - at));
  if (!number || *number < 1 || *number > static_cast<std::int64_t>(kMostLetters))
    return bad_pipeline(text, "'*' needs a whole number of 1 to " + std::to_string(kMostLetters) + " behind it");
  at = end;
  return *number;
}

Status repeat(std::string_view text, std::string_view piece, std::int64_t times, std::string& out) {
  if (out.size() + piece.size() * static_cast<std::size_t>(times) > kMostLetters)
    return bad_pipeline(text, "more than " + std::to_string(kMostLetters) + " letters when written out");
  for (std::int64_t i = 0; i < times; ++i) out += piece;
  return {};
}

// Without groups and counts.
Result<std::string> written_out(std::string_view text, std::string_view part) {
  std::string out;
  for (std::size_t at = 0; at < part.size();) {
    std::string piece(1, part[at++]);
    if (piece == "(") {
      const std::size_t close = part.find(')', at);
      if (close == std::string_view::npos || close + 1 == part.size() || part[close + 1] != '*')
        return bad_pipeline(text, "'(' needs ')*N'");
      const std::string_view inner = part.substr(at, close - at);
      if (inner.empty() || inner.find('(') != std::string_view::npos)
        return bad_pipeline(text, "groups are neither empty nor in one another");
      REFIT_ASSIGN(piece, written_out(text, inner));
      at = close + 1;
    } else if (piece != "|" && !is_letter(piece[0])) {
      return bad_pipeline(text, "'" + piece + "' is none of E t m L | ( ) *");
    }
    REFIT_ASSIGN(const std::int64_t times, read_times(part, at));
    REFIT_TRY(repeat(text, piece, times, out));
  }
  return out;
}

// A run of the same letter as "t*5", where that is shorter.
std::string with_counts(std::string_view stage) {
  std::string out;
  for (std::size_t at = 0; at < stage.size();) {
    std::size_t end = at;
    while (end < stage.size() && stage[end] == stage[at]) ++end;
    const std::string counted = std::string(1, stage[at]) + "*" + std::to_string(end - at);
    out += counted.size() < end - at ? counted : std::string(stage.substr(at, end - at));
    at = end;
  }
  return out;
}

// Stages of the SPEC's layout, in order: chunk 0 of all ranks of the pipeline, then chunk 1.
std::vector<std::string> stages_of(const Spec& spec) {
  const std::string& text = spec.texts.find("layout")->second;
  const auto out = written_out(text, text);
  REFIT_CHECK(out.ok());  // parse_spec() has read it
  std::vector<std::string> stages;
  for (std::string_view stage : split(*out, '|')) stages.emplace_back(stage);
  return stages;
}

Error refuse(const Spec& spec, std::int64_t layers, const std::string& what) {
  return Error(Code::kInvalid, "megatron: " + what + " (num_hidden_layers=" + std::to_string(layers) +
                                   ", pp=" + std::to_string(spec.number("pp")) +
                                   ", vpp=" + std::to_string(spec.number("vpp")) + ")");
}

// Layers of each stage, as stages_of() orders them: first and last as asked, or the ends one less where they count
// their embedding or loss as a layer; the others evenly.
Result<std::vector<std::int64_t>> even_sizes(const Spec& spec, std::int64_t layers) {
  const std::int64_t pp = spec.number("pp"), vpp = spec.number("vpp"), first = spec.number("first"),
                     last = spec.number("last");
  const std::string account = spec.given("account") ? spec.texts.find("account")->second : "";
  const std::int64_t begins = account == "embedding" || account == "both",
                     ends = account == "loss" || account == "both";
  if ((first > 0 || last > 0) && pp == 1) return refuse(spec, layers, "first= and last= need pp of at least 2");
  const std::int64_t others = pp - (first > 0) - (last > 0), left = layers + begins + ends - first - last;
  if (left < 0) return refuse(spec, layers, "first= and last= ask for more layers than there are");
  if (others == 0 && left != 0)
    return refuse(spec, layers, "first= and last= leave " + std::to_string(left) + " layers without a stage");
  if (others > 0 && left % others != 0)
    return refuse(spec, layers,
                  std::to_string(left) + " layers do not divide by " + std::to_string(others) + " stages" +
                      (account.empty() ? "" : ", account=" + account + " counted in"));
  std::vector<std::int64_t> of_rank(static_cast<std::size_t>(pp), others > 0 ? left / others : 0), out;
  if (first > 0) of_rank.front() = first;
  if (last > 0) of_rank.back() = last;
  for (std::int64_t n : of_rank)
    if (n % vpp != 0) return refuse(spec, layers, "a stage's " + std::to_string(n) + " layers do not divide by vpp");
  for (std::int64_t v = 0; v < vpp; ++v)
    for (std::int64_t n : of_rank) out.push_back(n / vpp);
  out.front() -= begins;
  out.back() -= ends;
  if (out.front() < 0 || out.back() < 0)
    return refuse(spec, layers, "account=" + account + " takes a layer from a stage that has none");
  return out;
}

// What Megatron asks of a layout. The stage of the draft layers; -1 without any.
Result<std::int64_t> check_stages(const Spec& spec, const std::vector<std::string>& stages, std::int64_t layers,
                                  std::int64_t drafts) {
  const auto bad = [&](const std::string& what) {
    return refuse(spec, layers, "layout='" + spec.texts.find("layout")->second + "': " + what);
  };
  const std::string all = std::accumulate(stages.begin(), stages.end(), std::string());
  const auto count = [&](char letter) { return std::count(all.begin(), all.end(), letter); };
  for (char letter : {'E', 'L'})
    if (count(letter) != 1)
      return bad(std::string(1, letter) + " stands " + std::to_string(count(letter)) + " times; it must once");
  if (!stages.front().starts_with('E')) return bad("E must be the first of the first stage");
  if (!stages.back().ends_with('L')) return bad("L must be the last of the last stage");
  if (count('t') != layers)
    return bad("it has " + std::to_string(count('t')) + " decoder layers (t), the configuration " +
               std::to_string(layers));
  if (count('m') != drafts)
    return bad("it has " + std::to_string(count('m')) + " draft layers (m), the configuration " +
               std::to_string(drafts) + (spec.given("draft") ? " under draft=skip" : ""));
  if (drafts == 0) return -1;
  if (all.find('m') < all.rfind('t')) return bad("draft layers (m) must follow all decoder layers (t)");
  const auto pp = static_cast<std::size_t>(spec.number("pp"));
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto here = std::count(stages[s].begin(), stages[s].end(), 'm');
    if (here == 0) continue;
    if (here != drafts) return bad("all draft layers (m) must lie in one stage");
    if (s + pp < stages.size()) return bad("draft layers (m) must lie in the last virtual chunk of their rank");
    return static_cast<std::int64_t>(s);
  }
  return -1;
}

}  // namespace

Result<std::string> canonical_pipeline(std::string_view text) {
  REFIT_ASSIGN(const std::string letters, written_out(text, text));
  const std::vector<std::string_view> stages = split(letters, '|');
  std::string out;
  for (std::size_t at = 0; at < stages.size();) {
    std::size_t end = at;
    while (end < stages.size() && stages[end] == stages[at]) ++end;
    // The last stage has no '|' behind it.
    const std::size_t counted = end == stages.size() ? end - at - 1 : end - at;
    const std::string stage = with_counts(stages[at]) + "|";
    if (counted > 1)
      out += (stage == "|" ? stage : "(" + stage + ")") + "*" + std::to_string(counted);
    else if (counted == 1)
      out += stage;
    if (end == stages.size()) out += with_counts(stages[at]);
    at = end;
  }
  return out;
}

Status complete_pipeline(Spec& spec) {
  std::int64_t& vpp = spec.numbers["vpp"];
  const auto refused = [](const std::string& what) { return Error(Code::kInvalid, "megatron: " + what); };
  const bool ends = spec.number("first") > 0 || spec.number("last") > 0;
  if (ends && spec.given("account")) return refused("account= cannot stand beside first= or last=");
  if (!spec.given("layout")) {
    vpp = std::max<std::int64_t>(vpp, 1);
    return {};
  }
  if (ends || spec.given("account")) return refused("layout= cannot stand beside first=, last= or account=");
  const auto stages = static_cast<std::int64_t>(stages_of(spec).size());
  const std::int64_t pp = spec.number("pp");
  const std::string has =
      "layout='" + spec.texts.find("layout")->second + "' has " + std::to_string(stages) + " stages, ";
  if (pp == 1 && stages > 1) return refused(has + "pp is 1");
  if (stages % pp != 0) return refused(has + "no multiple of pp=" + std::to_string(pp));
  if (vpp != 0 && vpp != stages / pp)
    return refused(has + "not pp*vpp = " + std::to_string(pp) + "*" + std::to_string(vpp));
  vpp = stages / pp;
  return {};
}

Result<Pipeline> megatron_pipeline(const Spec& spec, const ModelConfig& config) {
  const std::int64_t layers = config.size("L"), pp = spec.number("pp"),
                     drafts = spec.given("draft") ? 0 : config.draft_layers();
  std::int64_t drafts_at = -1;
  std::vector<std::int64_t> sizes;
  if (spec.given("layout")) {
    const std::vector<std::string> stages = stages_of(spec);
    REFIT_ASSIGN(drafts_at, check_stages(spec, stages, layers, drafts));
    for (const std::string& stage : stages) sizes.push_back(std::count(stage.begin(), stage.end(), 't'));
  } else {
    REFIT_ASSIGN(sizes, even_sizes(spec, layers));
  }
  const auto stage = [&](std::int64_t s, std::int64_t layer) { return Stage{s % pp, s / pp, layer}; };
  const auto last = static_cast<std::int64_t>(sizes.size()) - 1;
  Pipeline out{.layers = {}, .last = stage(last, 0), .drafts = stage(drafts_at < 0 ? last : drafts_at, 0)};
  for (std::int64_t s = 0; s <= last; ++s)
    for (std::int64_t i = 0; i < sizes[static_cast<std::size_t>(s)]; ++i) out.layers.push_back(stage(s, i));
  return out;
}

}  // namespace refit::model
