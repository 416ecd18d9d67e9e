{%- macro _cdc_value(text, column) -%}
{%- set kind = cdc_kind(column) | trim -%}
{%- if kind == 'bool' -%}case {{ text }} when 't' then true when 'f' then false end
{%- elif kind == 'binary' -%}unhex(substr({{ text }}, 3))
{%- elif kind == 'array' -%}{{ _cdc_array_elements(text, {'type': cdc_base(column)[:-2], 'type_kind': 'b', 'base_type': none}) }}
{%- else -%}try_cast({{ text }} as {{ cdc_spark_type(column) | trim }})
{%- endif -%}
{%- endmacro -%}
