{%- macro cdc_cleared(clears) -%}
{%- if clears == 'array()' -%}cast(null as bigint)
{%- else -%}get(filter({{ clears }}, t -> t.c > commit_lsn or (t.c = commit_lsn and t.o > ordinal)), 0).e
{%- endif -%}
{%- endmacro -%}
