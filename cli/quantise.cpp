// `refit quantize` and `refit dequantize`: weights of a safetensors file to FP8 codes with scales, and back.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/quantise_file.h"

namespace refit::cli {
namespace {
using nlohmann::json;

struct QuantArgs {
  std::string in, out, format, dtype = "bf16";
  std::vector<std::string> keep;
  bool power_of_two = false;
};

// The entry `quantization_config` of the config.json that goes with the file.
json config_of(const QuantFormat& format, const QuantReport& r) {
  if (format.name == "fp8_block")
    return {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"activation_scheme", "dynamic"},
            {"weight_block_size", {format.quant.block_rows, format.quant.block_cols}},
            {"modules_to_not_convert", r.kept_linear}};
  if (format.name == "mxfp8") return {{"quant_method", "modelopt"}, {"quant_algo", "MXFP8"}, {"ignore", r.kept_linear}};
  const auto args = [](const char* strategy, bool dynamic) {
    return json{{"num_bits", 8}, {"type", "float"}, {"strategy", strategy}, {"symmetric", true}, {"dynamic", dynamic}};
  };
  const json group{{"targets", json::array({"Linear"})},
                   {"weights", args("channel", false)},
                   {"input_activations", args("token", true)}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"config_groups", {{"group_0", group}}},
          {"ignore", r.kept_linear}};
}

json to_json(const QuantTensor& t) {
  json out{{"name", t.name}, {"shape", t.shape}, {"nans", t.findings.nans}, {"infinities", t.findings.infinities}};
  if (t.findings.nans != 0) out["first_nan"] = {t.findings.nan_row, t.findings.nan_col};
  return out;
}

json summary(const QuantArgs& args, const QuantReport& r, double seconds) {
  json out{{"ok", true},
           {"path", args.out},
           {"kept", r.kept},
           {"bytes_in", r.bytes_in},
           {"bytes_out", r.bytes_out},
           {"converted", json::array()},
           {"seconds", seconds}};
  for (const QuantTensor& t : r.converted) out["converted"].push_back(to_json(t));
  return out;
}

void print_findings(const QuantReport& r) {
  for (const QuantTensor& t : r.converted) {
    if (t.findings.nans != 0)
      fmt::print("  {}: {} NaN, the first at [{}, {}]\n", t.name, t.findings.nans, t.findings.nan_row,
                 t.findings.nan_col);
    if (t.findings.infinities != 0) fmt::print("  {}: {} infinities saturated\n", t.name, t.findings.infinities);
  }
}

void print(const QuantArgs& args, const QuantReport& r, double seconds, const json& config, const Context& context) {
  if (context.json) {
    json out = summary(args, r, seconds);
    if (!config.is_null()) out["quantization_config"] = config;
    fmt::print("{}\n", out.dump(-1, ' ', false, json::error_handler_t::replace));
    return;
  }
  fmt::print("{}: {} tensors converted, {} as they were, {} bytes to {}\n", args.out, r.converted.size(), r.kept.size(),
             r.bytes_in, r.bytes_out);
  print_findings(r);
  if (!config.is_null()) fmt::print("quantization_config of config.json: {}\n", config.dump());
}

CLI::App* subcommand(CLI::App& app, const char* name, const char* help, QuantArgs& args, Context& context) {
  CLI::App* sub = app.add_subcommand(name, help);
  sub->add_flag("--json", context.json, "One JSON object on stdout");
  sub->add_option("IN", args.in, "safetensors file")->required();
  sub->add_option("OUT", args.out, "safetensors file to write; appears complete or not at all")->required();
  return sub;
}

template <typename Run>
void finish(const QuantArgs& args, Context& context, const QuantFormat* format, const Run& run) {
  if (const Status isa = kernel::isa_status(); !isa.ok()) return fail(context, isa.error());
  const std::int64_t start = monotonic_ns();
  const Result<QuantReport> report = run();
  if (!report.ok()) return fail(context, report.error());
  print(args, *report, static_cast<double>(monotonic_ns() - start) * 1e-9,
        format != nullptr ? config_of(*format, *report) : json(), context);
}

void setup_quantize(CLI::App& app, Context& context) {
  auto args = std::make_shared<QuantArgs>();
  CLI::App* sub = subcommand(app, "quantize", "bf16 or f32 weights to FP8 codes with scales", *args, context);
  sub->add_option("--format", args->format, "fp8_block: 128 x 128; fp8_channel: per row; mxfp8: 32 along a row")
      ->check(CLI::IsMember({"fp8_block", "fp8_channel", "mxfp8"}))
      ->required();
  CLI::Option* power = sub->add_flag("--power-of-two", args->power_of_two, "fp8_block: scales are powers of two");
  sub->add_option("--keep", args->keep, "Leave tensors whose name contains this word; may be repeated")
      ->allow_extra_args(false);
  sub->callback([args, power, &context] {
    if (power->count() != 0 && args->format != "fp8_block")
      return fail(context, Error(Code::kInvalid, "--power-of-two: only with --format fp8_block"));
    const QuantFormat format = quant_format(args->format, args->power_of_two);
    finish(*args, context, &format, [&] { return quantise_file(args->in, args->out, format, args->keep); });
  });
}

void setup_dequantize(CLI::App& app, Context& context) {
  auto args = std::make_shared<QuantArgs>();
  CLI::App* sub = subcommand(app, "dequantize", "FP8 codes with scales to bf16 or f32", *args, context);
  sub->add_option("--dtype", args->dtype, "Of the result")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  sub->callback([args, &context] {
    finish(*args, context, nullptr,
           [&] { return dequantise_file(args->in, args->out, *dtype_from_string(args->dtype)); });
  });
}

REFIT_COMMAND("quantize", setup_quantize);
REFIT_COMMAND("dequantize", setup_dequantize);

}  // namespace
}  // namespace refit::cli
