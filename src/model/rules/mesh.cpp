#include "model/rules/mesh.h"

#include "model/rules/symbols.h"

namespace refit::model {
namespace {
// An axis may have several names, joined by '|'.
bool is_called(const Mesh::Axis& axis, std::string_view name) {
  if (axis.name == name) return true;
  for (std::string_view alias : split(axis.name, '|'))
    if (alias == name) return true;
  return false;
}
}  // namespace

Result<Mesh> Mesh::make(std::vector<Axis> axes) {
  Mesh mesh;
  for (const Axis& axis : axes) {
    const auto next = checked_mul(mesh.size_, axis.size);
    if (!next || *next > kMaxRanks)
      return Error(Code::kInvalid, axis.name + "=" + std::to_string(axis.size) + " makes more than " +
                                       std::to_string(kMaxRanks) + " ranks");
    mesh.size_ = *next;
  }
  mesh.axes_ = std::move(axes);
  mesh.steps_.resize(mesh.axes_.size());
  std::int64_t step = 1;
  for (std::size_t i = mesh.axes_.size(); i-- > 0;) {
    mesh.steps_[i] = step;
    step *= mesh.axes_[i].size;
  }
  return mesh;
}

Coordinates Mesh::coordinates(std::int64_t rank) const {
  Coordinates at(axes_.size());
  for (std::size_t i = 0; i < axes_.size(); ++i) at[i] = rank / steps_[i] % axes_[i].size;
  return at;
}

std::int64_t Mesh::rank(const Coordinates& at) const {
  std::int64_t rank = 0;
  for (std::size_t i = 0; i < axes_.size(); ++i) rank += at[i] * steps_[i];
  return rank;
}

Mesh::Part Mesh::part(std::string_view over, const Coordinates& at) const {
  Part part;
  for (std::string_view name : split(over, '*'))
    for (std::size_t i = 0; i < axes_.size(); ++i)
      if (is_called(axes_[i], name)) {
        part.index = part.index * axes_[i].size + at[i];
        part.count *= axes_[i].size;
      }
  return part;
}

std::int64_t Mesh::step(std::string_view axis) const {
  for (std::size_t i = 0; i < axes_.size(); ++i)
    if (is_called(axes_[i], axis)) return steps_[i];
  return 0;
}

void Mesh::mark(std::string_view over, std::vector<bool>& axes) const {
  for (std::string_view name : split(over, '*'))
    for (std::size_t i = 0; i < axes_.size(); ++i)
      if (is_called(axes_[i], name)) axes[i] = true;
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> Mesh::free_axes(const std::vector<bool>& marked) const {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> out;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (marked[i] || axes_[i].size == 1) continue;
    const auto count = static_cast<std::uint32_t>(axes_[i].size);
    const auto step = static_cast<std::uint32_t>(steps_[i]);
    if (!out.empty() && out.back().second == count * step)
      out.back() = {out.back().first * count, step};
    else
      out.emplace_back(count, step);
  }
  return out;
}

}  // namespace refit::model
