// One frame over the inner loops of a Body, and the table of operations made of both.
#pragma once
#include "codec/body.h"
#include "codec/change_body.h"

namespace refit::codec {

// `out` has room for shape.bytes(). Returns bytes written.
std::size_t encode_frame(const Body& body, const Shape& shape, Form form, const Byte* base, const Byte* next, Byte* out,
                         Scratch::Impl& work) noexcept;
// Sink::kNothing checks hostile bytes; the others need bytes that passed.
Fault walk_frame(const Body& body, const Shape& shape, Form form, Sink sink, const Byte* in, std::size_t bytes,
                 Byte* target, Scratch::Impl& work) noexcept;

inline const Byte* bytes_of(std::span<const std::byte> s) { return reinterpret_cast<const Byte*>(s.data()); }
inline Byte* bytes_of(std::span<std::byte> s) { return reinterpret_cast<Byte*>(s.data()); }

template <const Body& kBody>
constexpr Ops make_ops(const char* name, const char* needs) {
  return {
      .name = name,
      .needs = needs,
      .bound = [](const Shape& shape) noexcept { return shape.bytes(); },
      .encode =
          [](const Shape& shape, Form form, std::span<const std::byte> base, std::span<const std::byte> next,
             std::span<std::byte> out, Scratch& work) noexcept {
            return static_cast<std::int64_t>(
                encode_frame(kBody, shape, form, bytes_of(base), bytes_of(next), bytes_of(out), work.impl()));
          },
      .check =
          [](const Shape& shape, Form form, std::span<const std::byte> frame, Scratch& work) noexcept {
            return walk_frame(kBody, shape, form, Sink::kNothing, bytes_of(frame), frame.size(), nullptr, work.impl());
          },
      .apply =
          [](const Shape& shape, Form form, std::span<const std::byte> frame, std::span<std::byte> target,
             Scratch& work) noexcept {
            walk_frame(kBody, shape, form, form == Form::kUndoable ? Sink::kAdd : Sink::kStore, bytes_of(frame),
                       frame.size(), bytes_of(target), work.impl());
          },
      .undo =
          [](const Shape& shape, std::span<const std::byte> frame, std::span<std::byte> target,
             Scratch& work) noexcept {
            walk_frame(kBody, shape, Form::kUndoable, Sink::kSubtract, bytes_of(frame), frame.size(), bytes_of(target),
                       work.impl());
          },
  };
}

}  // namespace refit::codec
