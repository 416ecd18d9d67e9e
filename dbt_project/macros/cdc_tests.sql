{#- Rules that dbt has no test for; `cdc models sync` states them of each table. -#}

{#- No two rows share a key of several columns. A value that its typed column cannot carry is NULL there, and told apart
by `_cdc_text`. -#}
{% test cdc_unique(model, columns) %}
select {{ columns | join(', ') }}, count(*) as copies
from {{ model }}
group by {{ columns | join(', ') }}, to_json(_cdc_text)
having count(*) > 1
{% endtest %}

{#- A value, or the length of a text, is within the limits of the source's type. -#}
{% test cdc_between(model, column_name, low, high, length=false) %}
{%- set value = 'char_length(' ~ column_name ~ ')' if length else column_name %}
select {{ column_name }}
from {{ model }}
where {{ value }} not between {{ low }} and {{ high }}
{% endtest %}
