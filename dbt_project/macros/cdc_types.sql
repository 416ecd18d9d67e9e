{#- The one place that knows how PostgreSQL text becomes a typed value and back.

Pure Jinja: no dbt function is used here, so that `toolkit.values.lake_types` renders the same file. A `column` is one entry of
`columns` of a table snapshot. A typed value is accepted only if the canonical text made from it equals the source's
text; nothing rests on a cast failing, so the expressions mean the same with ANSI mode on or off.
-#}

{#- A Spark string literal. `$` is escaped because Spark substitutes `${...}` before it parses. -#}
{%- macro cdc_literal(text) -%}
{%- if text is none -%}cast(null as string)
{%- else -%}'{{ text.replace('\\', '\\\\').replace("'", "\\'").replace('$', '\\u0024') }}'
{%- endif -%}
{%- endmacro -%}

{%- macro cdc_quote(name) -%}`{{ name.replace('`', '``') }}`{%- endmacro -%}

{#- Lake name of each column as JSON, keyed by attnum: the mirror of `toolkit.values.names.lake_columns`. -#}
{%- macro cdc_lake_columns(columns) -%}
{%- set folded = {} -%}
{%- for c in columns -%}
  {%- set _ = folded.update({c.name.lower(): folded.get(c.name.lower(), 0) + 1}) -%}
{%- endfor -%}
{%- set reserved = ['_deleted', '_pos', '_file', '_spec_id', '_partition', '_change_type', '_row_id',
                    '_last_updated_sequence_number'] -%}
{%- set names, used = {}, folded.copy() -%}
{%- for c in columns -%}
  {%- set lower = c.name.lower() -%}
  {%- set taken = lower.startswith('_cdc_') or lower in reserved -%}
  {%- set clash = folded[lower] > 1 and c.name != lower -%}
  {%- set made = namespace(name=c.name) -%}
  {%- if taken or clash -%}
    {%- set made.name = ('u' if taken else '') ~ c.name ~ '_a' ~ c.attnum -%}
    {%- for _ in range(columns | length) if made.name.lower() in used -%}{%- set made.name = made.name ~ '_' -%}{%- endfor -%}
    {%- set _ = used.update({made.name.lower(): 1}) -%}
  {%- endif -%}
  {%- set _ = names.update({c.attnum | string: made.name}) -%}
{%- endfor -%}
{{ names | tojson }}
{%- endmacro -%}

{#- The type that decides: a domain is carried as its base type. -#}
{%- macro cdc_base(column) -%}{{ (column.base_type or column.type) if column.type_kind == 'd' else column.type }}{%- endmacro -%}

{#- How a column is carried: bool int bigint float double date timestamp timestamptz binary decimal array, or string.
Arrays of box alone are separated by `;`; they stay text. -#}
{%- macro cdc_kind(column) -%}
{%- set type = cdc_base(column) -%}
{%- if column.type_kind not in ['b', 'd'] -%}string
{%- elif type == 'boolean' -%}bool
{%- elif type in ['smallint', 'integer'] -%}int
{%- elif type.endswith('[]') -%}{{ 'string' if type == 'box[]' else 'array' }}
{%- elif type in ['bigint', 'oid', 'xid', 'cid'] -%}bigint
{%- elif type == 'xid8' -%}decimal
{%- elif type == 'real' -%}float
{%- elif type == 'double precision' -%}double
{%- elif type == 'date' -%}date
{%- elif type == 'bytea' -%}binary
{%- elif type.startswith('timestamp') and type.endswith(' without time zone') -%}timestamp
{%- elif type.startswith('timestamp') and type.endswith(' with time zone') -%}timestamptz
{%- elif type.startswith('numeric(') and type.endswith(')') -%}
  {%- set precision, scale = (type[8:-1].split(',')[0] | int, type[8:-1].split(',')[1] | int) -%}
  {%- if 0 <= scale and scale <= precision and precision <= 38 -%}decimal{%- else -%}string{%- endif -%}
{%- else -%}string
{%- endif -%}
{%- endmacro -%}

{%- macro cdc_spark_type(column) -%}
{%- set kind = cdc_kind(column) | trim -%}
{%- if kind == 'bool' -%}boolean
{%- elif kind == 'timestamp' -%}timestamp_ntz
{%- elif kind == 'timestamptz' -%}timestamp
{%- elif kind == 'decimal' -%}
{%- set type = cdc_base(column) -%}decimal{{ '(20,0)' if type == 'xid8' else type[7:] }}
{%- elif kind == 'array' -%}array<{{ cdc_spark_type({'type': cdc_base(column)[:-2], 'type_kind': 'b', 'base_type': none}) | trim }}>
{%- else -%}{{ kind }}
{%- endif -%}
{%- endmacro -%}

{#- The shortest digits of a float, as Java writes them. Before 19 it writes too many of a large integer; those are found
here, up to 2^63, so that a lake reads alike under every Java: the first of the roundings that lies nearer to it than to
another float. No column is named like its variables.
-#}
{%- macro _cdc_float_digits(value, digits) -%}
{%- set type, least, lengths = ('double', 9007199254740992, '15, 16, 17') if digits == 15 else ('float', 16777216, '6, 7, 8, 9') -%}
case when abs({{ value }}) >= {{ least }} and abs({{ value }}) < 9223372036854775808D then concat(if({{ value }} < 0, '-', ''), element_at(transform(
  filter(
    transform(transform(array({{ lengths }}), _cdc_p -> struct(abs(cast({{ value }} as bigint)) as whole,
        cast(rpad('1', greatest(length(cast(abs(cast({{ value }} as bigint)) as string)) - _cdc_p, 0) + 1, '0') as bigint) as unit)),
      _cdc_n -> struct(_cdc_n.whole, _cdc_n.unit * (_cdc_n.whole div _cdc_n.unit + if(2 * (_cdc_n.whole % _cdc_n.unit) > _cdc_n.unit or (2 * (_cdc_n.whole % _cdc_n.unit) = _cdc_n.unit and (_cdc_n.whole div _cdc_n.unit) % 2 = 1), 1, 0)) as shown)),
    _cdc_n -> _cdc_n.shown = _cdc_n.whole or cast(concat(cast(_cdc_n.shown - if(_cdc_n.shown < _cdc_n.whole, 1, 0) as string), '.5') as {{ type }}) = abs({{ value }})),
  _cdc_n -> concat(substr(cast(_cdc_n.shown as string), 1, 1), '.', rtrim('0', substr(cast(_cdc_n.shown as string), 2)), 'E', cast(length(cast(_cdc_n.shown as string)) - 1 as string))), 1))
else cast({{ value }} as string) end
{%- endmacro -%}

{#- PostgreSQL's shortest float text from Spark's: other exponent thresholds (15 digits for double, 6 for real). Both write
most values alike, and telling those apart first is much faster.
-#}
{%- macro _cdc_float_text(value, digits) -%}
case when {{ value }} = 0 or (abs({{ value }}) >= 0.001D and abs({{ value }}) < {{ '1E6D' if digits == 6 else '1E7D' }}) then
  if(endswith(cast({{ value }} as string), '.0'), substr(cast({{ value }} as string), 1, length(cast({{ value }} as string)) - 2), cast({{ value }} as string))
else element_at(transform(transform(array({{ _cdc_float_digits(value, digits) }}), j -> struct(j, regexp_replace(substring_index(j, 'E', 1), '[.]0?$', '') as m, try_cast(substring_index(j, 'E', -1) as int) as e)), f -> case
  when f.j is null then null
  when not contains(f.j, 'E') then
    {%- if digits == 6 %} case when length(regexp_extract(f.m, '^-?([0-9]+)', 1)) = 7 and not contains(f.j, 'n') then
      concat(if(startswith(f.m, '-'), '-', ''), regexp_replace(concat(substr(replace(replace(f.m, '-', ''), '.', ''), 1, 1), '.', substr(replace(replace(f.m, '-', ''), '.', ''), 2)), '[.]?0*$', ''), 'e+06')
      else f.m end
    {%- else %} f.m{% endif %}
  when f.e < -4 or f.e >= {{ digits }} then concat(f.m, 'e', if(f.e < 0, '-', '+'), if(abs(f.e) < 10, '0', ''), cast(abs(f.e) as string))
  when f.e = -4 then concat(if(startswith(f.m, '-'), '-', ''), '0.000', replace(replace(f.m, '-', ''), '.', ''))
  when length(replace(replace(f.m, '-', ''), '.', '')) <= f.e + 1 then concat(if(startswith(f.m, '-'), '-', ''), rpad(replace(replace(f.m, '-', ''), '.', ''), f.e + 1, '0'))
  else concat(if(startswith(f.m, '-'), '-', ''), substr(replace(replace(f.m, '-', ''), '.', ''), 1, f.e + 1), '.', substr(replace(replace(f.m, '-', ''), '.', ''), f.e + 2))
end), 1) end
{%- endmacro -%}

{#- PostgreSQL's text of an array of one dimension that starts at 1, from the texts of its elements. -#}
{%- macro _cdc_array_text(value, element) -%}
{%- set text = cdc_canonical('e', element) -%}
concat('{', array_join(transform({{ value }}, e -> case when e is null then 'NULL'
  {%- if (cdc_kind(element) | trim) in ['string', 'timestamp', 'timestamptz', 'binary', 'date'] %}
  when {{ text }} = '' or upper({{ text }}) = 'NULL' or {{ text }} rlike r'[{}",\\\s]' then concat('"', regexp_replace({{ text }}, r'(["\\])', r'\\$1'), '"')
  {%- endif %}
  else {{ text }} end), ','), '}')
{%- endmacro -%}

{#- Elements of an array's text: quoted ones, or runs without quotes and commas. The quantifiers are possessive so that
a long element does not fill Java's stack. What this reads wrongly (bounds, more dimensions) does not print back. -#}
{%- macro _cdc_array_elements(text, element) -%}
transform(regexp_extract_all(substr({{ text }}, 2, length({{ text }}) - 2), r'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^",]++', 0),
  e -> {% set word -%}
case when e = 'NULL' then null when startswith(e, '"') then regexp_replace(substr(e, 2, length(e) - 2), r'(?s)\\(.)', '$1') else e end
  {%- endset -%}
  {%- if (cdc_kind(element) | trim) == 'string' -%}{{ word }}
  {%- else -%}element_at(transform(array({{ word }}), w -> {{ _cdc_value('w', element) }}), 1)
  {%- endif -%})
{%- endmacro -%}

{#- Canonical PostgreSQL text of a typed value. Independent of the session's time zone. -#}
{%- macro cdc_canonical(value, column) -%}
{%- set kind = cdc_kind(column) | trim -%}
{%- if kind == 'string' -%}{{ value }}
{%- elif kind == 'bool' -%}case when {{ value }} then 't' when not {{ value }} then 'f' end
{%- elif kind in ['int', 'bigint', 'date', 'timestamp'] -%}cast({{ value }} as string)
{%- elif kind == 'decimal' -%}
  {%- set scale = (cdc_spark_type(column) | trim)[:-1].split(',')[1] | int -%}
  {#- Spark prints small decimals of a large scale with an exponent -#}
  {%- if scale <= 6 -%}cast({{ value }} as string)
  {%- else -%}replace(format_number({{ value }}, {{ scale }}), ',', '')
  {%- endif -%}
{%- elif kind == 'timestamptz' -%}
concat(cast(timestampadd(MICROSECOND, unix_micros({{ value }}), timestamp_ntz'1970-01-01 00:00:00') as string), '+00')
{%- elif kind == 'binary' -%}concat('\\x', lower(hex({{ value }})))
{%- elif kind == 'array' -%}{{ _cdc_array_text(value, {'type': cdc_base(column)[:-2], 'type_kind': 'b', 'base_type': none}) }}
{%- elif kind == 'float' -%}{{ _cdc_float_text(value, 6) }}
{%- elif kind == 'double' -%}{{ _cdc_float_text(value, 15) }}
{%- endif -%}
{%- endmacro -%}

{#- Typed value of a PostgreSQL text, or NULL where the type cannot carry it exactly. -#}
{%- macro cdc_typed(text, column) -%}
{%- set kind = cdc_kind(column) | trim -%}
{%- if kind == 'string' -%}{{ text }}
{%- elif kind == 'bool' -%}case {{ text }} when 't' then true when 'f' then false end
{%- else -%}
  {%- set value = _cdc_value(text, column) -%}
case when {{ cdc_canonical(value, column) }} = {{ text }} then {{ value }} end
{%- endif -%}
{%- endmacro -%}

{#- What Spark makes of a text: it may be wrong, and never fails. -#}
{%- macro _cdc_value(text, column) -%}
{%- set kind = cdc_kind(column) | trim -%}
{%- if kind == 'bool' -%}case {{ text }} when 't' then true when 'f' then false end
{%- elif kind == 'binary' -%}unhex(substr({{ text }}, 3))
{%- elif kind == 'array' -%}{{ _cdc_array_elements(text, {'type': cdc_base(column)[:-2], 'type_kind': 'b', 'base_type': none}) }}
{%- else -%}try_cast({{ text }} as {{ cdc_spark_type(column) | trim }})
{%- endif -%}
{%- endmacro -%}

{#- Exactly the source's text of a column of `current.*` or `history.*`. With `canonical` that stands for a typed value.
A cell that has both was written by somebody else: no PostgreSQL text holds the character that it is marked with. -#}
{%- macro cdc_text_of(lake_name, column, prefix='', canonical=none) -%}
{%- set value = prefix ~ cdc_quote(lake_name) -%}
{%- if (cdc_kind(column) | trim) == 'string' -%}{{ value }}
{%- else -%}coalesce(concat(try_element_at({{ prefix }}_cdc_text, {{ cdc_literal(lake_name) }}), if({{ value }} is null, '', '\u0000 beside a typed value')), {{ canonical or cdc_canonical(value, column) }})
{%- endif -%}
{%- endmacro -%}
