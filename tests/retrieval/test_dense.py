from __future__ import annotations

import functools
import json
import pickle
import shutil

import numpy as np
import pytest

from agent_r1_gym.core.types import Passage
from agent_r1_gym.errors import ConfigurationError, RetrievalError
from agent_r1_gym.retrieval.dense import DenseRetriever, SentenceEncoder
from tests.kit.processes import in_processes
from tests.retrieval.conftest import WORDS, count_words

pytest.importorskip("faiss", reason='faiss is not installed (pip install -e ".[dense]")')


def _ids(hits):
    return [hit.passage.id for hit in hits]


def test_hits_are_ordered_by_cosine(passages):
    hits = DenseRetriever(passages, encoder=count_words).search("Lothair married", 100)
    vectors = count_words([f"{passage.title}\n{passage.text}".strip() for passage in passages])
    query = count_words(["Lothair married"])[0]
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    order = np.argsort(-cosines)
    assert _ids(hits) == [passages[row].id for row in order]
    assert [hit.score for hit in hits] == pytest.approx(cosines[order].tolist(), abs=1e-5)


def test_batches_and_their_order_do_not_matter(passages):
    corpus = [Passage(str(number), "", "king " * (number % 7) + "film " * number) for number in range(50)]
    queries = ["film", "king", "film king", "", "king"]
    whole = DenseRetriever(corpus, encoder=count_words).search_batch(queries, 5)
    parts = DenseRetriever(corpus, encoder=count_words, batch_size=3).search_batch(queries, 5)
    assert [_ids(hits) for hits in whole] == [_ids(hits) for hits in parts]
    assert whole[3] == []
    assert whole[1] == whole[4]


def test_prefixes_are_put_before_queries_and_passages():
    seen: list[str] = []

    def encoder(texts):
        seen.extend(texts)
        return np.ones((len(texts), 2))

    DenseRetriever(
        [Passage("a", "T", "x")], encoder=encoder, query_prefix="query: ", passage_prefix="passage: "
    ).search("q", 1)
    assert seen == ["passage: T\nx", "query: q"]


@pytest.mark.parametrize(
    "encoder",
    [
        lambda texts: np.ones(len(texts)),
        lambda texts: np.ones((len(texts) + 1, 3)),
        lambda texts: np.full((len(texts), 3), np.nan),
    ],
)
def test_an_invalid_result_of_the_encoder_is_a_retrieval_error(passages, encoder):
    with pytest.raises(RetrievalError, match="one finite vector for each"):
        DenseRetriever(passages, encoder=encoder)


def test_a_cache_distinguishes_prefixes_and_needs_an_encoder_with_a_name(passages, tmp_path):
    cached = functools.partial(DenseRetriever, passages, cache_dir=tmp_path, fingerprint="f")
    plain, prefixed = cached(encoder=count_words), cached(encoder=count_words, passage_prefix="film ")
    assert plain.search("king", 3) != prefixed.search("king", 3)
    with pytest.raises(ConfigurationError, match="an encoder with a name"):
        cached(encoder=lambda texts: texts)


# Sentence encoders ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder = tmp_path_factory.mktemp("encoder")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "the", "of", "in", "a"]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=16).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def test_a_sentence_encoder_ignores_padding_and_cuts_long_texts(encoder_folder):
    encode = SentenceEncoder(encoder_folder)
    alone, padded = encode(["king of england"]), encode(["king of england", "a film in paris of the king " * 20])
    np.testing.assert_allclose(alone[0], padded[0], atol=1e-5)
    assert padded.shape == (2, 16)


def test_mean_pooling_is_the_mean_of_the_tokens(encoder_folder):
    import torch
    import transformers

    model = transformers.AutoModel.from_pretrained(encoder_folder).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(encoder_folder)("king of england", return_tensors="pt")
    with torch.inference_mode():
        states = model(**tokens).last_hidden_state[0].numpy()
    np.testing.assert_allclose(SentenceEncoder(encoder_folder)(["king of england"])[0], states.mean(0), atol=1e-5)
    cls = SentenceEncoder(encoder_folder, pooling="cls")(["king of england"])[0]
    np.testing.assert_allclose(cls, states[0], atol=1e-5)


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "cls"}, "cls"),
    ],
)
def test_the_folders_own_pooling_counts(tmp_path, config, pooling):
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    assert SentenceEncoder(tmp_path).pooling == pooling


def test_a_pooling_that_is_not_supported_is_refused(tmp_path):
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(ConfigurationError, match="supported are mean and cls"):
        SentenceEncoder(tmp_path)
    assert SentenceEncoder(tmp_path, pooling="mean").pooling == "mean"
    with pytest.raises(ConfigurationError, match=r"Unknown pooling 'max'\. Known: 'cls', 'mean'"):
        SentenceEncoder(tmp_path, pooling="max")


MODULES = [{"idx": at, "path": "", "type": f"sentence_transformers.models.{kind}"}
           for at, kind in enumerate(("Transformer", "Pooling", "Normalize"))]  # fmt: skip


def in_hub_cache(cache, monkeypatch, **files):
    """Fills a cache of the hub with an encoder; files without a value are known to be missing."""
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))

    def unreachable(source, name):
        raise hub.errors.LocalEntryNotFoundError(f"{name}: offline")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", unreachable)
    model = cache / "models--org--encoder"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("abc")
    for name, value in files.items():
        path = model / ("snapshots" if value is not None else ".no_exist") / "abc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("modules", "config", "pooling"),
    [
        (MODULES, {"pooling_mode_cls_token": True}, "cls"),
        (None, None, "mean"),
        (None, {"pooling_mode": "mean"}, "mean"),
    ],
)
def test_the_pooling_of_a_hub_id_is_that_of_the_hub(tmp_path, monkeypatch, modules, config, pooling):
    in_hub_cache(tmp_path, monkeypatch, **{"modules.json": modules, "1_Pooling/config.json": config})
    assert SentenceEncoder("org/encoder").pooling == pooling


def test_a_pooling_that_is_not_known_is_not_guessed(tmp_path, monkeypatch):
    in_hub_cache(tmp_path, monkeypatch, **{"modules.json": MODULES})
    with pytest.raises(RetrievalError, match=r"1_Pooling/config.json of .* cannot be read .*offline.* set pooling="):
        SentenceEncoder("org/encoder")
    assert SentenceEncoder("org/encoder", pooling="cls").pooling == "cls"
    with pytest.raises(RetrievalError, match=r"modules\.json of the sentence encoder 'no encoder' cannot be read"):
        SentenceEncoder("no encoder")


@pytest.mark.parametrize(
    ("modules", "problem"),
    [
        ([*MODULES, {"type": "sentence_transformers.models.Dense"}], r"modules of the kinds Dense; supported are Norm"),
        ([{"path": ""}], "is damaged: KeyError"),
        (7, "is damaged"),
    ],
)
def test_an_encoder_with_further_modules_is_refused(tmp_path, modules, problem):
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigurationError, match=problem):
        SentenceEncoder(tmp_path)


def test_an_index_belongs_to_its_pooling(encoder_folder, tmp_path):
    encoder = shutil.copytree(encoder_folder, tmp_path / "encoder")
    corpus = [Passage(word, "", f"{word} of the film") for word in WORDS]
    build = functools.partial(DenseRetriever, corpus, encoder=encoder, cache_dir=tmp_path, fingerprint="f")
    mean = build().search("king", 3)
    (encoder / "1_Pooling").mkdir()
    (encoder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    cls = build().search("king", 3)
    assert cls == build(pooling="cls").search("king", 3) != mean


def test_a_folder_makes_a_retriever_that_finds_the_same_text(encoder_folder, passages, tmp_path):
    corpus = [Passage(word, "", f"{word} of the {other}") for word in WORDS for other in WORDS]
    retriever = DenseRetriever(corpus, encoder=encoder_folder, cache_dir=tmp_path, fingerprint="f")
    hit = retriever.search("king of the film", 1)[0]
    assert hit.passage.text == "king of the film"
    assert hit.score == pytest.approx(1.0, abs=1e-4)
    again = pickle.loads(pickle.dumps(retriever))
    assert again.search("king of the film", 1)[0].passage == hit.passage


def test_a_missing_encoder_is_a_retrieval_error(passages, tmp_path, monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(RetrievalError, match="cannot be loaded"):
        DenseRetriever(passages, encoder=tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_worker_can_search(encoder_folder):
    corpus = [Passage(str(number), "", "king of england " * (number % 9 + 1)) for number in range(400)]
    retriever = DenseRetriever(corpus, encoder=encoder_folder)
    queries = ["king of england"] * 50
    expected = [[hit.passage for hit in hits] for hits in retriever.search_batch(queries, 5)]
    (answers,) = in_processes("fork", retriever.search_batch, [(queries, 5)])
    assert [[hit.passage for hit in hits] for hits in answers] == expected
