"""
Runs the program in this folder:

    torchrun --nproc-per-node N DIR/main.py --weights FILE --inputs FILE --outputs FILE

Files are safetensors (or .pt) with whole tensors by name; each process takes its part.
With --steps, the program trains: results that update an argument replace it in the next
step. With --prompts, it generates tokens.
"""

import argparse
import importlib.util
import json
import os
import re
import sys
from pathlib import Path

EVALUATION = "evaluation_program.py"

_LOST = re.compile(r"connection .*?\b(closed|reset)\b( by peer)?", re.IGNORECASE)
"""
Matches the error of torch.distributed in a process when another process has ended.
"""


def load_package():
    """
    Imports the package in this folder, whatever the folder's name, and returns the name
    of the imported package.
    """
    here = Path(__file__).resolve().parent
    # The modules here are found through the package, and hide no others.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != here]
    name = "distributed_program"
    # Removes modules of a package that this process imported before.
    for known in [m for m in sys.modules if m.startswith(f"{name}.")]:
        del sys.modules[known]
    spec = importlib.util.spec_from_file_location(
        name, here / "__init__.py", submodule_search_locations=[str(here)]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return name


def _weights(package, path, program):
    """
    Returns the tensors in a file or folder of weights, by name. Raises ProgramError if
    none of the tensors belongs to the program.
    """
    tensors = importlib.import_module(f"{package}.tensors")
    runtime = importlib.import_module(f"{package}.runtime")
    folder = Path(path)
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        found = importlib.import_module(f"{package}.stored_tensors").load(folder)
    else:
        found = tensors.load(folder)
    if not any(runtime.holds(spec, found) for spec in program.ARGUMENTS):
        wanted = [spec.name for spec in program.ARGUMENTS if spec.role == "parameter"]
        raise runtime.ProgramError(
            f"{path} has none of the program's tensors, such as {wanted[:3]}; it has "
            f"{list(found)[:3]}"
        )
    return found


def _generate(name, manifest, options, sources, common):
    """
    Generates tokens with the given `options` of the command line, and writes them on
    process 0. Raises ProgramError if the prompts cannot be read or do not fit.
    """
    generation = importlib.import_module(f"{name}.generation")
    runtime = importlib.import_module(f"{name}.runtime")
    path = Path(options.prompts)
    try:
        prompts = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise runtime.ProgramError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise runtime.ProgramError(f"{path} is not JSON: {error}") from error
    modules = {
        entry: importlib.import_module(f"{name}.{module}")
        for entry, module in manifest["entries"].items()
    }
    timeout, init_method = common
    found = generation.generate(
        generation.EntryPrograms(**modules),
        options.backend,
        sources,
        prompts,
        options.max_new_tokens,
        stop=options.stop_token,
        timeout_s=timeout,
        init_method=init_method,
    )
    if int(os.environ.get("RANK", "0")) == 0:
        text = json.dumps(found)
        if options.outputs:
            write_text = importlib.import_module(f"{name}.output_files").write_text
            write_text(options.outputs, text + "\n")
        else:
            print(text)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Runs this distributed program.")
    parser.add_argument(
        "--weights",
        action="append",
        default=[],
        help="a tensor file, a folder of safetensors files, or a checkpoint of "
        "torch.distributed.checkpoint (a folder with .metadata, or the --checkpoint-dir of a "
        "training); what it lacks is taken from the file in manifest.json",
    )
    parser.add_argument("--inputs", action="append", default=[], help="a tensor file")
    parser.add_argument("--outputs", help="where rank 0 writes the results")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds to wait for other ranks"
    )
    parser.add_argument(
        "--init-method",
        default="env://",
        help="where the ranks meet (torch.distributed)",
    )
    parser.add_argument("--steps", type=int, help="train up to this step")
    parser.add_argument(
        "--seed", type=int, default=0, help="of parameters that no file holds"
    )
    parser.add_argument("--checkpoint-dir", default="", help="where checkpoints are")
    parser.add_argument(
        "--save-every", type=int, default=0, help="steps from a checkpoint to the next"
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const="latest",
        default="",
        metavar="STEP",
        help="go on from a checkpoint, the latest one unless a step is named; `if-any` "
        "starts anew where there is none",
    )
    tokens = parser.add_argument_group("generation")
    tokens.add_argument(
        "--prompts",
        metavar="FILE.json",
        help="lists of token ids; --outputs gets them, each with its new tokens",
    )
    tokens.add_argument(
        "--max-new-tokens", type=int, metavar="N", help="new tokens of each prompt"
    )
    tokens.add_argument(
        "--stop-token",
        type=int,
        action="append",
        default=[],
        metavar="ID",
        help="a token with which a sequence ends",
    )
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="FILE.py:FUNCTION|NAME=FILE.npy",
        help="inputs and labels",
    )
    data.add_argument(
        "--data-workers",
        type=int,
        default=0,
        metavar="N",
        help="processes of each rank that load samples of a torch Dataset",
    )
    data.add_argument("--eval-every", type=int, default=0, metavar="N")
    data.add_argument("--eval-data", action="append", default=[])
    data.add_argument("--log-file", default="", help="a file of JSON lines")
    data.add_argument("--tensorboard", default="", metavar="DIR")
    rates = parser.add_argument_group("learning rate")
    rates.add_argument(
        "--warmup", type=int, default=0, metavar="N", help="steps in which it grows"
    )
    rates.add_argument(
        "--decay",
        choices=("none", "linear", "cosine"),
        default="none",
        help="how it falls from then on",
    )
    rates.add_argument("--min-lr", type=float, default=0.0, help="where it falls to")
    rates.add_argument(
        "--decay-until", type=int, metavar="STEP", help="(default: the last step)"
    )
    rates.add_argument(
        "--settings",
        help="a JSON file with lists of learning_rate, weight_decay or both, one number a "
        "step",
    )
    options = parser.parse_args(arguments)
    if (options.resume or options.save_every) and not options.checkpoint_dir:
        parser.error("--resume and --save-every need --checkpoint-dir")
    if options.data_workers and not options.data:
        parser.error("--data-workers is of use with --data only")
    if bool(options.eval_every) != bool(options.eval_data):
        parser.error("--eval-every and --eval-data need each other")
    if options.eval_every and not Path(__file__).with_name(EVALUATION).exists():
        parser.error("this package cannot evaluate; write it with --evaluation")
    if options.steps is not None:
        if options.steps < 1:
            parser.error("--steps must be at least 1")
        if not Path(__file__).with_name("training.py").exists():
            parser.error("this program holds no training step")
    generates = Path(__file__).with_name("generation.py").exists()
    if generates and (options.prompts is None or options.max_new_tokens is None):
        parser.error(
            "this program generates tokens: give --prompts and --max-new-tokens"
        )
    if not generates and (options.prompts or options.max_new_tokens):
        parser.error("this program generates no tokens; import the model with --serve")
    name = load_package()
    program = importlib.import_module(f"{name}.program")
    runtime = importlib.import_module(f"{name}.runtime")
    tensors = importlib.import_module(f"{name}.tensors")
    try:
        file = Path(__file__).resolve().with_name("manifest.json")
        manifest = json.loads(file.read_text(encoding="utf-8"))
        if manifest["compiled"]:
            runtime.check_compiler(options.backend)
        sources = [tensors.load(file) for file in options.inputs]
        sources += [_weights(name, path, program) for path in options.weights]
        if manifest["weights"] is not None:
            own = file.parent / manifest["weights"]  # which may be absolute
            is_known = own in map(Path, options.weights)
            if not is_known and (own.exists() or not options.weights):
                sources.append(tensors.load(own))
        common = (options.timeout, options.init_method)
        if generates:
            _generate(name, manifest, options, sources, common)
            return
        if options.steps is None:
            results = runtime.run(program, options.backend, sources, *common)
        else:
            training = importlib.import_module(f"{name}.training")
            settings = importlib.import_module(f"{name}.settings")
            schedule = settings.StepSettings(
                options.warmup,
                options.decay,
                options.min_lr,
                options.decay_until or options.steps,
                settings.read(options.settings) if options.settings else {},
            )
            wanted = training.Options(
                options.steps,
                options.seed,
                options.checkpoint_dir,
                options.save_every,
                options.resume,
                schedule,
                tuple(options.data),
                options.data_workers,
                options.eval_every,
                tuple(options.eval_data),
                options.log_file,
                options.tensorboard,
                bool(options.outputs),
            )
            results = training.train(program, options.backend, sources, wanted, *common)
        if options.outputs and results:
            tensors.save(options.outputs, results)
    except (runtime.ProgramError, tensors.FileError) as error:
        sys.exit(f"error: {error}")
    except RuntimeError as error:
        lost = _LOST.search(str(error))
        if lost is None:
            raise
        advice = ""
        if options.checkpoint_dir:
            advice = "; --resume goes on from the last complete checkpoint"
        sys.exit(
            f"error: the connection to another process is lost ({lost[0]}): that one has "
            f"ended, and what it or its launcher said last tells why{advice}"
        )


if __name__ == "__main__":
    main()
