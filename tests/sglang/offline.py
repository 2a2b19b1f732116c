"""A real SGLang engine in this process takes weights through Refit: see refits.py.   Usage: offline.py BUILD_DIR [WAY...]"""
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import refits  # noqa: E402
import support  # noqa: E402


def main():
    support.prepare(pathlib.Path(sys.argv[1]).resolve())
    import refit.sglang
    import sglang

    base = pathlib.Path(tempfile.mkdtemp(prefix="refit-sglang-"))
    paths, asked, tokens = support.two_models(base)
    engine = sglang.Engine(model_path=str(paths[0]), custom_weight_loader=[refit.sglang.LOADER], log_level="warning", **support.ENGINE)

    def generated():
        return [a["output_ids"] for a in engine.generate(input_ids=asked, sampling_params=support.sampling())]

    try:
        for via in sys.argv[2:] or refit.sglang.server.VIAS:
            refits.tell(refit.sglang.LocalEngine(engine, via=via, folder=str(base)), generated, paths, tokens, f"{via} in process")
        refits.compare(refit.sglang.LocalEngine(engine), generated, paths, tokens)
    finally:
        engine.shutdown()
    print("passed")


if __name__ == "__main__":
    main()
