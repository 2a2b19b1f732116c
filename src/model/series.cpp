#include "model/series.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace refit::model {
namespace {

constexpr std::string_view kPlace = "{}";

bool is_count(std::string_view part) {
  return !part.empty() && part.size() <= 9 && (part.size() == 1 || part[0] != '0') &&
         std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The pattern with the runs of one number filled in.
Series without_single_runs(Series s) {
  std::string pattern;
  std::vector<Run> runs;
  std::size_t at = 0;
  for (const Run& run : s.runs) {
    const std::size_t found = s.pattern.find(kPlace, at);
    pattern += s.pattern.substr(at, found - at);
    at = found + kPlace.size();
    if (run.count == 1) {
      pattern += std::to_string(run.first);
    } else {
      pattern += kPlace;
      runs.push_back(run);
    }
  }
  s.pattern = pattern + s.pattern.substr(at);
  s.runs = std::move(runs);
  return s;
}

// All but where it lies on one axis; then that.
auto order_on(const Series& s, std::size_t axis) {
  std::vector<std::int64_t> others;
  for (std::size_t a = 0; a < s.runs.size(); ++a)
    if (a != axis) others.insert(others.end(), {s.runs[a].first, s.runs[a].count, s.runs[a].step, s.runs[a].bytes});
  return std::tuple(std::string_view(s.pattern), s.alike, std::move(others));
}

void join_on(std::size_t axis, std::vector<Series>& items) {
  struct Entry {
    decltype(order_on(items[0], axis)) key;
    std::size_t item;
  };
  std::vector<Entry> order;
  std::vector<Series> out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (axis < items[i].runs.size())
      order.push_back({order_on(items[i], axis), i});
    else
      out.push_back(items[i]);
  }
  const auto first = [&](const Entry& e) { return std::pair(items[e.item].runs[axis].first, items[e.item].offset); };
  std::sort(order.begin(), order.end(),
            [&](const Entry& a, const Entry& b) { return a.key != b.key ? a.key < b.key : first(a) < first(b); });
  for (std::size_t i = 0; i < order.size();) {
    Series joined = items[order[i].item];
    Run& run = joined.runs[axis];
    std::size_t end = i + 1;
    std::int64_t offset = joined.offset;
    for (; end < order.size() && order[end].key == order[i].key; ++end) {
      const Series& next = items[order[end].item];
      const std::int64_t step = next.runs[axis].first - (run.first + (run.count - 1) * run.step),
                         bytes = next.offset - offset;
      if (step < 1 || (run.count > 1 && (step != run.step || bytes != run.bytes))) break;
      run = {run.first, run.count + 1, step, bytes};
      offset = next.offset;
    }
    i = end;
    out.push_back(std::move(joined));
  }
  items = std::move(out);
}

}  // namespace

Series series_of(std::string_view name) {
  Series out;
  if (name.size() > kMostPattern / 2 || name.find_first_of("{}") != std::string_view::npos) {
    out.pattern = name;
    return out;
  }
  for (std::size_t at = 0;;) {
    const std::size_t dot = std::min(name.find('.', at), name.size());
    const std::string_view part = name.substr(at, dot - at);
    if (is_count(part)) {
      out.runs.push_back({.first = std::stoll(std::string(part))});
      out.pattern += kPlace;
    } else {
      out.pattern += part;
    }
    if (dot == name.size()) return out;
    out.pattern += '.';
    at = dot + 1;
  }
}

std::vector<Series> joined_series(std::vector<Series> items) {
  std::size_t axes = 0;
  for (const Series& s : items) axes = std::max(axes, s.runs.size());
  for (std::size_t axis = axes; axis-- > 0;) join_on(axis, items);
  for (Series& s : items) s = without_single_runs(std::move(s));
  return items;
}

Result<std::vector<std::pair<std::string, std::int64_t>>> names_in(const Series& series, std::size_t most) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto bad = [&](const std::string& what) {
    return Error(Code::kInvalid, "series '" + series.pattern + "': " + what);
  };
  if (!series.runs.empty() && (series.pattern.size() > kMostPattern || series.runs.size() > kMostRuns))
    return Error(Code::kInvalid, "a series has at most " + std::to_string(kMostRuns) + " runs and a name of at most " +
                                     std::to_string(kMostPattern) + " bytes");
  std::vector<std::pair<std::string, std::int64_t>> out{{"", series.offset}};
  std::size_t at = 0;
  for (const Run& run : series.runs) {
    const std::size_t found = series.pattern.find(kPlace, at);
    if (found == std::string::npos) return bad("fewer {} than runs");
    if (run.first < 0 || run.count < 1 || run.step < 1 || run.first > kMost || run.count > kMost || run.step > kMost ||
        run.first + (run.count - 1) * run.step > kMost)
      return bad("a run must be of 1 or more numbers below 2^31, ascending");
    if (out.size() > most / static_cast<std::size_t>(run.count))
      return bad("more than " + std::to_string(most) + " names");
    const auto span = checked_mul(run.count - 1, run.bytes);
    if (!span) return bad("its places pass 2^63 bytes");
    std::vector<std::pair<std::string, std::int64_t>> next;
    next.reserve(out.size() * static_cast<std::size_t>(run.count));
    const std::string before = series.pattern.substr(at, found - at);
    for (const auto& [name, offset] : out) {
      if (!checked_add(offset, *span)) return bad("its places pass 2^63 bytes");
      for (std::int64_t i = 0; i < run.count; ++i)
        next.emplace_back(name + before + std::to_string(run.first + i * run.step), offset + i * run.bytes);
    }
    out = std::move(next);
    at = found + kPlace.size();
  }
  if (!series.runs.empty() && series.pattern.find(kPlace, at) != std::string::npos) return bad("more {} than runs");
  for (auto& [name, offset] : out) name += series.pattern.substr(at);
  return out;
}

}  // namespace refit::model
