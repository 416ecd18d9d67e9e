{%- macro _cdc_array_elements(text, element) -%}
transform(regexp_extract_all(substr({{ text }}, 2, length({{ text }}) - 2), r'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^",]++', 0),
  e -> {% set word -%}
case when e = 'NULL' then null when startswith(e, '"') then regexp_replace(substr(e, 2, length(e) - 2), r'(?s)\\(.)', '$1') else e end
  {%- endset -%}
  {%- if (cdc_kind(element) | trim) == 'string' -%}{{ word }}
  {%- else -%}element_at(transform(array({{ word }}), w -> {{ _cdc_value('w', element) }}), 1)
  {%- endif -%})
{%- endmacro -%}
