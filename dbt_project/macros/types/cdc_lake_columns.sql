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
