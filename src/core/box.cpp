#include "core/box.h"

#include <algorithm>

#include "core/checked.h"

namespace refit {

Interval intersect(Interval a, Interval b) { return {std::max(a.lo, b.lo), std::min(a.hi, b.hi)}; }

bool empty(const Box& box) {
  return std::any_of(box.begin(), box.end(), [](const Interval& i) { return i.empty(); });
}

std::int64_t elements(const Box& box) {
  std::int64_t n = 1;
  for (const Interval& i : box) n *= i.size();
  return n;
}

Box intersect(const Box& a, const Box& b) {
  REFIT_CHECK(a.size() == b.size());
  Box out(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) out[i] = intersect(a[i], b[i]);
  return out;
}

Box whole(const Dims& extents) {
  Box out;
  out.reserve(extents.size());
  for (std::int64_t e : extents) out.push_back({0, e});
  return out;
}

std::string to_string(const Box& box) {
  std::string out = "[";
  for (std::size_t i = 0; i < box.size(); ++i)
    out += (i ? ", [" : "[") + std::to_string(box[i].lo) + ", " + std::to_string(box[i].hi) + ")";
  return out + "]";
}

const std::vector<Dims>& Radices::none() {
  static const std::vector<Dims> kNone;
  return kNone;
}

std::vector<Dims>& Radices::own() {
  if (!held_)
    held_ = std::make_shared<std::vector<Dims>>();
  else if (held_.use_count() > 1)
    held_ = std::make_shared<std::vector<Dims>>(*held_);
  return *held_;
}

View View::trivial(const Dims& shape) {
  std::vector<Dims> axes;
  axes.reserve(shape.size());
  for (std::int64_t n : shape) axes.push_back({n});
  return {std::move(axes)};
}

bool View::is_trivial() const {
  return std::all_of(radices.begin(), radices.end(), [](const Dims& r) { return r.size() == 1; });
}

int View::factors() const {
  std::size_t n = 0;
  for (const Dims& r : radices) n += r.size();
  return static_cast<int>(n);
}

Dims View::extents() const {
  Dims out;
  for (const Dims& r : radices) out.insert(out.end(), r.begin(), r.end());
  return out;
}

std::vector<int> View::axis_of() const {
  std::vector<int> out;
  for (std::size_t a = 0; a < radices.size(); ++a) out.insert(out.end(), radices[a].size(), static_cast<int>(a));
  return out;
}

Dims View::steps() const {
  Dims out;
  for (const Dims& r : radices) {
    const std::size_t first = out.size();
    out.resize(first + r.size());
    std::int64_t step = 1;
    for (std::size_t i = r.size(); i-- > 0;) {
      out[first + i] = step;
      step *= r[i];
    }
  }
  return out;
}

Status View::validate(const Dims& shape) const {
  if (radices.size() != shape.size())
    return Error(Code::kInvalid, "view has " + std::to_string(radices.size()) + " axes, the tensor has " +
                                     std::to_string(shape.size()));
  if (factors() > kMaxFactors)
    return Error(Code::kInvalid, "view has " + std::to_string(factors()) + " factors, at most " +
                                     std::to_string(kMaxFactors) + " are allowed");
  for (std::size_t a = 0; a < shape.size(); ++a) {
    if (radices[a].empty()) return Error(Code::kInvalid, "view axis " + std::to_string(a) + " has no factor");
    const auto checked = checked_extent_product(radices[a]);
    std::int64_t product = 1;
    bool zero = false;
    for (std::int64_t r : radices[a]) zero = zero || r == 0;
    if (checked) product = zero ? 0 : *checked;
    if (!checked || product != shape[a])
      return Error(Code::kInvalid, "view factors of axis " + std::to_string(a) + " do not multiply to its extent " +
                                       std::to_string(shape[a]));
  }
  return {};
}

}  // namespace refit
