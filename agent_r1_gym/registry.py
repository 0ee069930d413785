"""The registry of environments: register, look up by name, make, and read the specification."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.vector import ToolVectorEnv
from agent_r1_gym.errors import ConfigurationError, suggest
from agent_r1_gym.support import docstrings
from agent_r1_gym.support.checks import StrictOptions, check_integer
from agent_r1_gym.support.packages import NAME, import_named_module, package_of, plugin_error, plugins, warn_of_plugin

NAMESPACE = "AgentR1"
PLUGINS = "agent_r1_gym.environments"
"""Group of entry points: an installed package registers "Namespace/Name-v0" = "module:Class" here."""
TextEnv = gymnasium.Env[str, str]
_ID = re.compile(r"[\w.-]+/[\w.-]+-v\d+")
_CLASS = re.compile(r"[\w.]+:\w+")
_REFERENCE = re.compile(r"(?:[Aa]s\s+in|[Ss]ee|[Tt]hose\s+of)\s+`([^`]+)`")


@dataclass(frozen=True)
class VectorEntryPoint:
    """A vector entry point: builds a `ToolVectorEnv` of the environment class at `entry_point` ("module:Class")."""

    entry_point: str | Callable[..., ToolEnv]

    def __call__(
        self,
        num_envs: int = 1,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
        env_wrappers: Sequence[Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]] = (),
        **options: Any,
    ) -> ToolVectorEnv:
        """Make a vector of environments.

        Args:
            num_envs: number of environments.
            autoreset_mode: see `ToolVectorEnv`.
            max_episode_steps: limit of Gymnasium's `TimeLimit` around each environment; None: no limit.
            env_wrappers: applied to each environment, the innermost first; Gymnasium reserves the name `wrappers` of
                `make_vec` for its own vectors.
            **options: options of the environments; their class shares heavy parts between them.
        """
        check_integer("num_envs", num_envs, 1)
        creator: Any = self.entry_point
        if isinstance(creator, str):
            module, _, name = creator.partition(":")
            creator = getattr(importlib.import_module(module), name)
        envs: list[gymnasium.Env[Any, Any]] = [creator(**options) for _ in range(num_envs)]
        if max_episode_steps is not None:
            envs = [TimeLimit(env, max_episode_steps) for env in envs]
        for wrap in env_wrappers:
            envs = [wrap(env) for env in envs]
        return ToolVectorEnv(envs, autoreset_mode=autoreset_mode)


def register(id: str, entry_point: str | Callable[..., ToolEnv], *, kwargs: Mapping[str, Any] | None = None) -> None:
    """Register a `ToolEnv` with Gymnasium, so that `gym.make(id)` and `gym.make_vec(id)` return this suite's classes.

    A ToolEnv checks actions and the order of calls itself, so Gymnasium's wrappers that would do it again are not
    applied. It has its own limit, `max_turns`; none is registered for Gymnasium's `TimeLimit`, which truncates without
    the environment's knowledge. `gymnasium.make(id, max_episode_steps=n)` still adds one.

    Args:
        id: "Namespace/Name-v0".
        entry_point: the class, or "module:Class".
        kwargs: default options of the environment.

    Raises:
        ConfigurationError: this package registers another environment under that id.
    """
    known, vector, options = gymnasium.registry.get(id), VectorEntryPoint(entry_point), dict(kwargs or {})
    if known is not None and (known.vector_entry_point, known.kwargs) == (vector, options):
        return  # a plug-in's module registers its id too, for use without installation
    if known is not None and _is_ours(known):
        raise ConfigurationError(f"{id} is an environment of {NAME}; register {entry_point!r} under another id.")
    gymnasium.register(
        id,
        entry_point=entry_point,
        vector_entry_point=vector,
        max_episode_steps=None,
        order_enforce=False,
        disable_env_checker=True,
        kwargs=options,
    )


def register_text_env(id: str, entry_point: str | Callable[..., TextEnv]) -> None:
    """Register a text environment that is not a `ToolEnv`; `TextGame` checks the order of calls and the turns itself.

    Args:
        id: "Namespace/Name-v0".
        entry_point: the class, or "module:Class".
    """
    gymnasium.register(id, entry_point=entry_point, order_enforce=False, disable_env_checker=True)


def register_plugins() -> None:
    """Register the environments of installed packages, from their metadata: their modules are imported when needed.

    An id that cannot be registered is skipped with a warning that names the package.
    """
    for identifier, point in plugins(PLUGINS).items():
        if not _ID.fullmatch(identifier) or not _CLASS.fullmatch(point.value):
            problem = f'expected "Namespace/Name-v0" = "module:Class", got "{identifier}" = "{point.value}"'
        elif identifier.startswith(f"{NAMESPACE}/"):
            problem = f"the namespace {NAMESPACE} is that of {NAME}"
        elif identifier in gymnasium.registry and gymnasium.registry[identifier].entry_point != point.value:
            problem = f"{source(identifier)} has registered this id"
        else:
            register(identifier, point.value)
            continue
        warn_of_plugin(f"{identifier!r} of {package_of(point)} is ignored: {problem}.")


def env_ids() -> list[str]:
    """List every registered id of this suite."""
    return sorted(name for name, spec in gymnasium.registry.items() if spec.namespace == NAMESPACE)


def plugin_ids() -> list[str]:
    """List the registered ids of installed packages."""
    registered = {name: spec.entry_point for name, spec in gymnasium.registry.items()}
    return sorted(name for name, point in plugins(PLUGINS).items() if registered.get(name) == point.value)


def source(identifier: str) -> str:
    """Return the package that registered an environment: a name, with the version if it is a plug-in; else a module.

    Args:
        identifier: a registered id.
    """
    spec = gymnasium.spec(identifier)
    entry_point, plugin = spec.entry_point, plugins(PLUGINS).get(identifier)
    if plugin is not None and plugin.value == entry_point:
        return package_of(plugin)
    if _is_ours(spec):
        return NAME
    module = entry_point if isinstance(entry_point, str) else str(getattr(entry_point, "__module__", ""))
    top = module.replace(":", ".").partition(".")[0]
    return top if top == "gymnasium" else f"the module {top}"


def _is_ours(spec: EnvSpec) -> bool:
    """Return whether this package registered an environment."""
    return spec.namespace == NAMESPACE and str(spec.entry_point).startswith(f"{__package__}.")


def full_id(name: str) -> str:
    """Resolve `name` to an id that `gymnasium.make` accepts in any process.

    Args:
        name: an id, MODULE:ID (see `registered_id`), an id of this suite without its namespace and version, or one of a
            plug-in without its version.

    Raises:
        ConfigurationError: no environment has that id.
    """
    if registered_id(name) in gymnasium.registry:
        return name
    module, colon, identifier = name.rpartition(":")
    if colon:
        registered = _ids_of(module)
        hint = (
            suggest(identifier, registered)
            if registered
            else f"It registers none: it lacks agent_r1_gym.register({identifier!r}, ...)."
        )
        raise ConfigurationError(f"Unknown environment {name!r}: {module!r} registers no {identifier!r}. {hint}")
    short = _short_names()
    if name.lower() in short:
        return short[name.lower()]
    near = suggest(name.removeprefix(f"{NAMESPACE}/").lower(), short)
    raise ConfigurationError(
        f"Unknown environment {name!r}. {near} `agent-r1 envs` lists them; write your own as MODULE:{name}."
    )


def registered_id(name: str) -> str:
    """Resolve MODULE:ID to ID, importing the module that registers it; other names are returned unchanged.

    For this import the current folder is searched first, as `python -m` does and a console script does not; afterwards
    last, so that a file next to the module never shadows an installed package that is imported later.

    Raises:
        ConfigurationError: the module cannot be imported.
    """
    module, colon, identifier = name.rpartition(":")
    if not colon:
        return name
    import_named_module(module, repr(name))
    return identifier


def find_registered(name: str) -> str | None:
    """Find the registered id that `name` means, without importing its module; None: no such id is registered.

    Args:
        name: see `full_id`.
    """
    identifier = name.rpartition(":")[2]
    return identifier if identifier in gymnasium.registry else _short_names().get(identifier.lower())


def _short_names() -> dict[str, str]:
    """The ids by their short names, in lower case."""
    ids = [*env_ids(), *plugin_ids()]
    return {identifier.removeprefix(f"{NAMESPACE}/").rsplit("-v", 1)[0].lower(): identifier for identifier in ids}


def _ids_of(module: str) -> list[str]:
    """List the registered ids whose entry points are in the package of `module`."""
    package = module.partition(".")[0]
    points = {identifier: spec.entry_point for identifier, spec in gymnasium.registry.items()}
    modules = {
        identifier: p if isinstance(p, str) else str(getattr(p, "__module__", "")) for identifier, p in points.items()
    }
    return [identifier for identifier, point in modules.items() if point.replace(":", ".").split(".")[0] == package]


def specification(name: str) -> str:
    """Write the specification of an environment as Markdown: its docstring, with its references resolved.

    "As in `ID`" in a section is followed by the same section of that environment, "see `CLASS`" by the documentation of
    a base class: its `Args:` under "Arguments", its `info` under "Information".

    Args:
        name: see `full_id`.

    Raises:
        ConfigurationError: no environment has that id.
    """
    identifier = registered_id(full_id(name))
    creator, text = _documented(identifier)
    summary, parts = docstrings.sections(text)
    if not parts:
        return text or f"{identifier} ({gymnasium.spec(identifier).entry_point}) has no docstring."
    resolved = (f"{line}\n{_resolved(creator, heading, body, {identifier})}" for heading, (line, body) in parts.items())
    return "\n\n".join([summary, *(section.strip() for section in resolved)])


def summary(name: str) -> str:
    """Return the first line of an environment's specification."""
    return specification(name).split("\n", 1)[0]


def option_names(identifier: str) -> frozenset[str] | None:
    """Return the names of the options of a registered environment; None if its class does not know them.

    Args:
        identifier: a registered id.
    """
    from agent_r1_gym.gateway.env import AGENT_OPTIONS
    from agent_r1_gym.wrappers import WINDOW_OPTIONS  # not loaded by `import agent_r1_gym`

    creator, _ = _documented(identifier)
    if not (isinstance(creator, type) and issubclass(creator, StrictOptions)):
        return None
    return creator.option_names() | {*WINDOW_OPTIONS, *AGENT_OPTIONS}


def _documented(identifier: str) -> tuple[Any, str]:
    """Return the entry point of an environment and its own docstring."""
    creator = _load(identifier)
    return creator, inspect.cleandoc(getattr(creator, "__doc__", None) or "")  # not `getdoc`: a base class's


def _load(identifier: str) -> Any:
    """Import the entry point of an environment.

    Raises:
        ConfigurationError: it is that of another package, and the import fails.
    """
    entry_point = gymnasium.spec(identifier).entry_point
    if not isinstance(entry_point, str):
        return entry_point
    try:
        return load_env_creator(entry_point)
    except (Exception, SystemExit) as error:  # code of others may raise anything
        if entry_point.startswith(f"{__package__}."):
            raise
        raise plugin_error(identifier, source(identifier), entry_point, error) from error


def _resolved(creator: Any, heading: str, body: str, seen: set[str]) -> str:
    """Write a section, followed by the text that it refers to; `seen` are the references already resolved."""
    parts = [body]
    for reference in dict.fromkeys(_REFERENCE.findall(body)):
        if reference in seen:
            continue
        seen.add(reference)
        text = _referred(creator, heading, reference, seen)
        if text and re.fullmatch(r"As\s+in\s+`[^`]+`\.", body):
            parts = [text]
        elif text:
            parts.append(f"From `{reference}`:\n\n{text}")
    return "\n\n".join(parts)


def _referred(creator: Any, heading: str, reference: str, seen: set[str]) -> str:
    """Find the text of an environment or a base class under a heading, "" if there is none."""
    if reference in gymnasium.registry:
        other, text = _documented(reference)
        _, body = docstrings.sections(text)[1].get(heading, ("", ""))
        return _resolved(other, heading, body, seen)
    base = next((base for base in getattr(creator, "__mro__", ()) if base.__name__ == reference), None)
    text = inspect.cleandoc(base.__doc__ or "") if base is not None else ""
    if heading == "Arguments":
        return docstrings.arguments(text, without=getattr(creator, "fixed_options", ()))
    return docstrings.paragraph_with(text, "`info` (") if heading == "Information" else ""


def short_id(env: str) -> str:
    """Strip namespace and module from an id, for names of folders."""
    return env.split(":")[-1].split("/")[-1]


def make_text_env(name: str, options: Mapping[str, Any], *, markup: Sequence[str] = ()) -> TextEnv:
    """Make a text environment with the wrappers of its registration, and a `ContextWindow` if the options ask for it.

    Args:
        name: see `full_id`.
        options: options of the environment, and those that any `ToolEnv` has: `context_window` and `context_mode` (see
            `wrappers.with_window`), `agent`, `agent_timeout` and `agent_logs` (see `gateway.env.ProgramEnv`).
        markup: further strings that a `ToolEnv` breaks in foreign text, such as a tokenizer's special tokens.

    Raises:
        ConfigurationError: no such environment, options that do not fit, or observations or actions other than text.
    """
    from agent_r1_gym.gateway.env import split_agent, with_agent
    from agent_r1_gym.wrappers import split_window, with_window  # not loaded by `import agent_r1_gym`

    identifier = full_id(name)
    options, window = split_window(options)
    options, agent = split_agent(options)
    env = _make(identifier, options)
    is_tool_env = isinstance(env.unwrapped, ToolEnv)
    space = env.unwrapped.observation_space if is_tool_env else env.observation_space
    if not isinstance(space, gymnasium.spaces.Text):
        raise ConfigurationError(
            f"{name} observes {type(space).__name__}, not text; only text environments can be played by a language "
            "model. Wrap it in a wrapper that describes the observation in words, such as LanguageWrapper."
        )
    if not is_tool_env and not isinstance(env.action_space, gymnasium.spaces.Text):
        raise ConfigurationError(
            f"{name} takes {type(env.action_space).__name__} as action, not text; only text environments can be played "
            "by a language model. Wrap it in a wrapper that reads actions from text, such as LanguageWrapper."
        )
    if is_tool_env and markup and "markup" not in options:
        env.close()
        env = _make(identifier, {**options, "markup": tuple(markup)})
    return with_agent(with_window(env, name, window), name, agent)


def make_tool_env(name: str, options: Mapping[str, Any]) -> ToolEnv:
    """Make the `ToolEnv` of that id without its wrappers: for its tasks, tools and data, not to be played.

    Raises:
        ConfigurationError: see `make_text_env`; or it is not a `ToolEnv`, or the options ask for a window.
    """
    from agent_r1_gym.gateway.env import split_agent
    from agent_r1_gym.wrappers import split_window

    for option in {**split_window(options)[1], **split_agent(options)[1]}:
        raise ConfigurationError(
            f"This command only reads the tools and tasks of {name}, so {option} has no effect; drop it."
        )
    env = make_text_env(name, options).unwrapped
    if not isinstance(env, ToolEnv):
        raise ConfigurationError(f"{name} is a {type(env).__name__}, not a ToolEnv; see `agent-r1 envs`.")
    return env


def _make(identifier: str, options: Mapping[str, Any]) -> TextEnv:
    _load(registered_id(identifier))
    try:
        env: TextEnv = gymnasium.make(identifier, disable_env_checker=True, **options)
    except TypeError as error:
        if not options:
            raise
        raise ConfigurationError(
            f"The options {dict(options)!r:.200} do not fit {identifier}: {error.__cause__ or error}."
        ) from error
    while isinstance(env, OrderEnforcing):  # it would hide the halves of a ToolEnv's step, and sessions call in order
        env = env.env
    return env
