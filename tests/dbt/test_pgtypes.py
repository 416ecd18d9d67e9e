"""Typing is lossless: what a type cannot carry exactly stays text, and every text comes back byte for byte."""

from __future__ import annotations

import pytest

from toolkit.values import lake_types
from toolkit.values.config import Config
from toolkit.values.names import lake_columns
from toolkit.values.table import Column

QUOTED = [
    "{}",
    '{"",NULL,"NULL","null"," ",a}',
    '{"a,b","c\\"d","e\\\\f","{}"}',
    '{"x\ty\nz",é😀,$1}',
    '{"' + "x y" * 9000 + '"}',
]

# type, texts that are carried, texts that must not be
CORPUS = [
    ("boolean", ["t", "f"], ["x", "true"]),
    ("smallint", ["-32768"], []),
    ("integer", ["0", "-1", "2147483647", "-2147483648"], ["2147483648", "+1", "01", " 1", "1.0"]),
    ("bigint", ["9223372036854775807", "-9223372036854775808"], ["9223372036854775808"]),
    ("numeric(12,2)", ["0.00", "-0.01", "1234567890.12"], ["NaN", "1.5", "1e2", "12345678901.00", "-0.00"]),
    ("numeric(38,18)", ["0.000000000000000000", "12345678901234567890.000000000000000001"], ["NaN", "Infinity"]),
    ("numeric(38,0)", ["99999999999999999999999999999999999999", "-5"], []),
    ("numeric(3,-2)", ["12300"], []),
    ("numeric", ["1.50", "NaN"], []),
    (
        "real",
        [
            "0",
            "-0",
            "1.5",
            "100000",
            "1e+06",
            "1.234567e+06",
            "1e+07",
            "3.4028235e+38",
            "0.0001",
            "1e-05",
            "NaN",
            "1.6777216e+07",
            "1.6777218e+07",
            "5.202694e+08",
            "-3.305519e+14",
            "1e+15",
            "9.223372e+18",
        ],
        ["1e400", "1.0"],
    ),
    (
        "double precision",
        [
            "0",
            "-0",
            "0.1",
            "100000000",
            "123456789012345",
            "1e+15",
            "1.2345678901234568e+17",
            "12345678.9",
            "1e-05",
            "0.00012",
            "1.7976931348623157e+308",
            "NaN",
            "Infinity",
            "-Infinity",
            "1.5e-10",
            "-98765432.125",
            "9.007199254740992e+15",
            "-8.430099169480525e+16",
            "3.516805737047282e+17",
            "1e+18",
            "6.938583606695827e+18",
            "9.199999999999999e+18",
            "9.223372036854776e+18",
        ],
        ["1e400", "1E5", "1.0"],
    ),
    ("date", ["2024-02-29", "0001-01-01", "9999-12-31"], ["0044-03-15 BC", "infinity", "now", "5874897-12-31"]),
    (
        "timestamp without time zone",
        ["2024-01-01 00:00:00", "2024-01-01 00:00:00.123456", "9999-12-31 23:59:59.999999"],
        ["infinity", "0044-03-15 00:00:00 BC", "294276-12-31 00:00:00", "now", "2024-01-01 00:00:00.1234567"],
    ),
    (
        "timestamp with time zone",
        ["2024-01-01 00:00:00+00", "2024-01-01 00:00:00.1+00", "0001-01-01 00:00:00+00", "1883-11-18 12:03:58+00"],
        ["infinity", "2024-01-01 00:00:00+02", "0044-03-15 00:00:00+00 BC", "now"],
    ),
    ("bytea", ["\\x", "\\x00ff"], ["\\xZZ", "abc", "\\xFF", "\\xfff"]),
    ("character(3)", ["a  ", ""], []),
    ("integer[]", ["{}", "{1}", "{-1,NULL,3}"], ["[0:1]={1,NULL}", "{{1,2},{3,4}}", "{01}", "{1,}", "{NULL,null}"]),
    ("boolean[]", ["{t,f,NULL}"], ["{true}"]),
    ("numeric(5,2)[]", ["{1.50,NULL}"], ["{NaN}", "{1.5}"]),
    ("double precision[]", ["{0.1,-0,1e+15,-3.516805737047282e+17,NaN,Infinity}"], ["{1E5}"]),
    ("date[]", ["{2024-02-29,NULL}"], ['{"0044-03-15 BC"}', "{infinity}"]),
    ("timestamp without time zone[]", ['{"2024-01-01 00:00:00.5",NULL}'], ["{infinity}"]),
    ("timestamp with time zone[]", ['{"2024-01-01 00:00:00+00"}'], ["{-infinity}"]),
    ("bytea[]", ['{"\\\\x00ff","\\\\x"}'], ['{"\\\\xZZ"}']),
    (
        "text[]",
        QUOTED,
        ["{{a,b},{c,d}}", "[2:2]={a}", '{"a"}'],
    ),
    ("public.mood[]", ['{"a b",it\'s}'], []),
    ("box[]", ["{(1,1),(0,0);(2,2),(1,1)}"], []),
    ("oid", ["4294967295"], []),
    ("xid8", ["18446744073709551615"], []),
]


#: Names that variables of the expressions had.
NAMED = {"real": "digits", "double precision": "n", "double precision[]": "e"}


def a_column(type_: str, name: str = "x", attnum: int = 1) -> Column:
    kind = ("d", type_) if type_ == "smallint" else ("b", None)  # a domain over it is typed alike
    shown = "public.d" if kind[1] else type_
    return Column(
        attnum, name, 0, shown, -1, False, None, "", "", None, False, None, kind[0], "X", kind[1], (), (), True
    )  # fmt: skip


@pytest.mark.spark
@pytest.mark.wide
def test_trap_143_texts_survive_each_time_zone_and_mode_of_spark(lake: Config) -> None:
    from toolkit.lake.session import own_session

    spark = own_session(lake.lake_access)
    for ansi, zone in (("true", "UTC"), ("false", "America/New_York")):
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        spark.conf.set("spark.sql.session.timeZone", zone)
        parts = []
        for number, (type_, good, bad) in enumerate(CORPUS):
            spark.createDataFrame([(t,) for t in good + bad], "s string").createOrReplaceTempView(f"corpus{number}")
            column, x = a_column(type_), NAMED.get(type_, "x")
            typed = spark.sql(f"select {lake_types.typed_sql('s', column)} from corpus{number}").schema[0].dataType
            assert typed.simpleString() == lake_types.spark_type(column)
            parts.append(
                f"select {number} n, s, {lake_types.text_sql(x, column)} back, {x} is not null carried from"
                f" (select s, {x}, case when {x} is null then map('{x}', s) end _cdc_text from"
                f" (select s, {lake_types.typed_sql('s', column)} {x} from corpus{number}))"
            )
        for row in spark.sql(" union all ".join(parts)).collect():
            type_, good, bad = CORPUS[row.n]
            assert row.back == row.s, (type_, row.s)
            assert row.carried == (row.s in good), (type_, row.s)


@pytest.mark.unit
def test_no_two_columns_share_a_name_in_the_lake() -> None:
    named = ["id", "A", "a", "_cdc_text", "_pos", "_FILE", "Ä", "ä", "x.y", "it's", "`"]
    named += ["u_cdc_text_a4", "A_A2", "a_a2_", "U_POS_A5"]
    found = lake_columns(list(enumerate(named, 1)))
    assert len({name.lower() for name in found.values()}) == len(named)
    assert {found[attnum] for attnum in (12, 13, 14, 15)} == set(named[11:])  # the user's own names stay
