// Inside of the facade: the border between Result and exceptions, and the way from public values to the rooms' own.
#pragma once
#include <memory>

#include "core/core.h"
#include "model/model.h"
#include "refit/refit.h"

namespace refit::api {

struct Layout::Impl {
  std::shared_ptr<const model::Layout> layout;
};

// What public classes keep from their users.
struct Inside {
  static const std::shared_ptr<const model::Layout>& of(const Layout& l) { return l.impl_->layout; }
  static Layout wrap(std::shared_ptr<const model::Layout> l) {
    return Layout(std::make_shared<const Layout::Impl>(Layout::Impl{std::move(l)}));
  }
};

// The rooms' own, whose plain names mean the public ones here.
using InnerError = ::refit::Error;
using InnerCode = ::refit::Code;

Error to_public(const InnerError& error);
// Of an exception that the caller's code threw: `what` says where.
InnerError to_inner(const std::exception& thrown, const std::string& what);

// The one place where an error becomes an exception.
template <typename T>
T take(Result<T> r) {
  if (!r.ok()) throw to_public(r.error());
  return std::move(r).value();
}
inline void take(const Status& s) {
  if (!s.ok()) throw to_public(s.error());
}

VersionInfo to_public(const Version& v);

// Seconds from outside. Throws kInvalid naming the argument for what is no finite number or negative.
double checked_s(const char* argument, double seconds);

}  // namespace refit::api
