// Boxes and views: where a piece of a logical tensor lies in its own coordinates.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "core/result.h"

namespace refit {

using Dims = std::vector<std::int64_t>;  // row-major, axis 0 first
inline constexpr int kMaxFactors = 32;   // most factors (over all axes) of a view

// Half-open interval [lo, hi).
struct Interval {
  std::int64_t lo = 0, hi = 0;
  std::int64_t size() const { return hi > lo ? hi - lo : 0; }
  bool empty() const { return hi <= lo; }
  friend bool operator==(const Interval&, const Interval&) = default;
  friend auto operator<=>(const Interval&, const Interval&) = default;
};

Interval intersect(Interval a, Interval b);

// One interval per (factored) axis. A box with no axes holds the one element of a 0-dim tensor.
using Box = std::vector<Interval>;

bool empty(const Box& box);
std::int64_t elements(const Box& box);  // product of sizes; the caller has checked that it fits
Box intersect(const Box& a, const Box& b);
Box whole(const Dims& extents);
std::string to_string(const Box& box);

// Digits of each axis of a view. A model has few views and 10⁵ holdings: copies share, and a copy that is changed first
// becomes one of its own. *thread-compatible*; copies may live in different threads.
class Radices {
 public:
  using value_type = Dims;
  using const_iterator = std::vector<Dims>::const_iterator;
  Radices() = default;
  Radices(std::vector<Dims> axes) { own() = std::move(axes); }
  Radices(std::initializer_list<Dims> axes) { own() = axes; }
  operator const std::vector<Dims>&() const { return get(); }
  const std::vector<Dims>& get() const { return held_ ? *held_ : none(); }
  std::size_t size() const { return get().size(); }
  bool empty() const { return get().empty(); }
  const Dims& operator[](std::size_t axis) const { return get()[axis]; }
  const Dims& at(std::size_t axis) const { return get().at(axis); }
  const_iterator begin() const { return get().begin(); }
  const_iterator end() const { return get().end(); }
  void set(std::size_t axis, Dims digits) { own().at(axis) = std::move(digits); }
  void push_back(Dims digits) { own().push_back(std::move(digits)); }
  friend bool operator==(const Radices& a, const Radices& b) { return a.held_ == b.held_ || a.get() == b.get(); }

 private:
  static const std::vector<Dims>& none();
  std::vector<Dims>& own();
  std::shared_ptr<std::vector<Dims>> held_;
};

// Optional factoring of a tensor's axes: axis a is the mixed-radix number with digits radices[a], outermost first, and
// the product of radices[a] is the axis' extent. The trivial view has one factor per axis.
struct View {
  Radices radices;

  static View trivial(const Dims& shape);
  bool is_trivial() const;
  int factors() const;
  // Extents of all factors, axis by axis.
  Dims extents() const;
  // For each factor: the axis it belongs to, and how many logical indices of that axis one step of it is worth.
  std::vector<int> axis_of() const;
  Dims steps() const;
  // Errors: kInvalid when a radix is negative, the count passes kMaxFactors, or a product misses the axis' extent.
  Status validate(const Dims& shape) const;
  friend bool operator==(const View&, const View&) = default;
};

}  // namespace refit
