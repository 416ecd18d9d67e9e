{%- macro cdc_branch(relation) -%}
{{ relation }}.branch_cdc_build_{{ invocation_id.replace('-', '') }}
{%- endmacro -%}
