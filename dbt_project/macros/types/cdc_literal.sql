{%- macro cdc_literal(text) -%}
{%- if text is none -%}cast(null as string)
{%- else -%}'{{ text.replace('\\', '\\\\').replace("'", "\\'").replace('$', '\\u0024') }}'
{%- endif -%}
{%- endmacro -%}
