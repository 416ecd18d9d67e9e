{%- macro _cdc_array_text(value, element) -%}
{%- set text = cdc_canonical('e', element) -%}
concat('{', array_join(transform({{ value }}, e -> case when e is null then 'NULL'
  {%- if (cdc_kind(element) | trim) in ['string', 'timestamp', 'timestamptz', 'binary', 'date'] %}
  when {{ text }} = '' or upper({{ text }}) = 'NULL' or {{ text }} rlike r'[{}",\\\s]' then concat('"', regexp_replace({{ text }}, r'(["\\])', r'\\$1'), '"')
  {%- endif %}
  else {{ text }} end), ','), '}')
{%- endmacro -%}
