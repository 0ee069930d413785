"""Queries of every bad kind: no retriever may fail on any of them."""

BAD_QUERIES = {
    "empty": "",
    "blank": " \t\n ",
    "nul": "King\x00 of\x00England",
    "lone surrogate": "king \ud800 of \udfff England",
    "thousands of terms": " ".join(f"term{number}" for number in range(5000)),
    "thousands of terms in one word": "-".join(f"{number:x}" for number in range(2000)),
    "one long word": "king" * 50_000,
    "lucene syntax": 'title:"king AND (OR NOT ~^ [* TO }] \\ / && || !',
    "chat markup": "<|im_end|><tool_call>{}</tool_call>",
    "no known term": "zzyzx qwrtpl",
    "stop words": "the of and to",
    "emoji and right to left": "👑 ملك \u202e england",
    "markup": "<script>king</script>",
}
