// What a change of one element is, for CPU and GPU.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "codec/codec.h"

namespace refit::codec {

// What becomes of the changes of a frame that is read.
enum class Sink : std::uint8_t { kNothing, kAdd, kSubtract, kStore };

// The number that travels for an element that went from a to b. Sign-extended, so that a difference of bytes has its
// sign as a 16-bit number too.
template <typename E, typename V>
REFIT_HD inline V change_value(Form form, E a, E b) {
  const auto difference = static_cast<V>(static_cast<std::make_signed_t<E>>(static_cast<E>(b - a)));
  return form == Form::kUndoable ? difference : static_cast<V>(b);
}

// The element after a change.
template <typename E>
REFIT_HD inline E changed_element(Sink sink, E old, E value) {
  if (sink == Sink::kStore) return value;
  return sink == Sink::kAdd ? static_cast<E>(old + value) : static_cast<E>(old - value);
}

}  // namespace refit::codec
